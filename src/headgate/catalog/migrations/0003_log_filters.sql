-- Indexes for reading the log from its newest end, under any filter.
CREATE INDEX publications_by_kind ON publications (kind, number);

CREATE INDEX moves_by_dataset ON moves (dataset_id, publication);

CREATE INDEX moves_by_name ON moves (branch_name, publication);
