-- Holds of the resets before migration 0008, by the rules of publications. `walk` goes from both
-- views of a reset to the newest transaction that they share.
INSERT INTO holds (branch_id, inputs_key, publication)
WITH RECURSIVE walk (publication, branch_id, from_id, from_depth, to_id, to_depth) AS (
    SELECT m.publication, m.branch_id,
        m.from_id, COALESCE(f.depth, -1), m.to_id, COALESCE(t.depth, -1)
    FROM publications p
    JOIN moves m ON m.publication = p.number
    LEFT JOIN transactions f ON f.id = m.from_id
    LEFT JOIN transactions t ON t.id = m.to_id
    WHERE p.kind = 'reset' AND m.change = 'moved'
    UNION ALL
    SELECT w.publication, w.branch_id,
        CASE WHEN w.from_depth >= w.to_depth THEN f.parent_id ELSE w.from_id END,
        CASE WHEN w.from_depth >= w.to_depth THEN w.from_depth - 1 ELSE w.from_depth END,
        CASE WHEN w.to_depth >= w.from_depth THEN t.parent_id ELSE w.to_id END,
        CASE WHEN w.to_depth >= w.from_depth THEN w.to_depth - 1 ELSE w.to_depth END
    FROM walk w
    LEFT JOIN transactions f ON f.id = w.from_id
    LEFT JOIN transactions t ON t.id = w.to_id
    WHERE COALESCE(w.from_id, '') <> COALESCE(w.to_id, '')
),
-- Transactions that a reset removed from a branch, and those that a publication showed there.
steps (branch_id, transaction_id, removed_by, shown_by) AS (
    SELECT branch_id, from_id, publication, 0 FROM walk
    WHERE from_depth >= to_depth AND from_id <> COALESCE(to_id, '')
    UNION ALL
    SELECT branch_id, to_id, 0, publication FROM walk WHERE to_depth >= from_depth
    UNION ALL
    SELECT branch_id, to_id, 0, publication FROM moves
    WHERE branch_id IN (SELECT branch_id FROM walk)
),
-- A merge shows a build's version without its key.
keys (branch_id, inputs_key, removed_by, shown_by) AS (
    SELECT s.branch_id, t.inputs_key, s.removed_by, s.shown_by
    FROM steps s JOIN transactions t ON t.id = s.transaction_id
    WHERE t.inputs_key IS NOT NULL
    UNION ALL
    SELECT s.branch_id, k.inputs_key, s.removed_by, s.shown_by
    FROM steps s JOIN transactions t ON t.id = s.transaction_id
    JOIN transactions k ON k.version_id = t.version_id
    WHERE t.inputs_key IS NULL AND k.inputs_key IS NOT NULL
)
SELECT branch_id, inputs_key, MAX(removed_by) FROM keys
WHERE branch_id IN (SELECT id FROM branches UNION ALL SELECT id FROM deleted_branches)
GROUP BY branch_id, inputs_key
HAVING MAX(removed_by) > MAX(shown_by)
ON CONFLICT (branch_id, inputs_key) DO NOTHING;
