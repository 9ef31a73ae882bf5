/*
 * Appends that were prepared on an older snapshot.
 *
 * The server rebases a commit that only appends, in place of refusing it with a conflict.
 */
module appends

abstract sig Rule {}
one sig ParentIsAncestor, OwnEntriesOnly extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig File {}
sig Snapshot {}
-- A client's append: its new files and, in its manifest list, the files of the snapshot it read.
sig Append { adds: some File, makes: one Snapshot }
fact { all disj a, b: Append | no a.adds & b.adds and a.makes != b.makes }

one sig Table {
  var current: lone Snapshot,
  var parent: Snapshot -> lone Snapshot,
  var files: Snapshot -> File,
  var base: Append -> lone Snapshot
}
var sig Made in Snapshot {}
var sig Landed in Append {}
-- Files that a delete or a reset removed, and that no later append of a client added.
var sig Removed in File {}

pred init {
  one Table.current and Made = Table.current and no Table.parent and no Table.base
  no Landed and no Removed
  Table.files in Made -> File and no Made.(Table.files) & Append.adds and Made not in Append.makes
}

pred sameTable { Table.current' = Table.current and Table.parent' = Table.parent
  Table.files' = Table.files and Made' = Made and Removed' = Removed }

pred prepare[a: Append] {
  no Table.base[a] and Table.base' = Table.base + a -> Table.current
  Landed' = Landed and sameTable
}

pred land[a: Append] {
  a not in Landed and some Table.base[a]
  keeps[ParentIsAncestor] implies Table.base[a] in Table.current.*(Table.parent)
  let taken = (keeps[OwnEntriesOnly] implies a.adds else a.adds + Table.base[a].(Table.files)) |
    Table.files' = Table.files + a.makes -> (Table.current.(Table.files) + taken)
  Table.current' = a.makes and Table.parent' = Table.parent + a.makes -> Table.current
  Made' = Made + a.makes and Landed' = Landed + a and Removed' = Removed
  Table.base' = Table.base
}

-- A delete of rows: a new snapshot without some files.
pred remove[s: Snapshot, gone: File] {
  s not in Made + Append.makes and gone in Table.current.(Table.files)
  Table.files' = Table.files + s -> (Table.current.(Table.files) - gone)
  Table.current' = s and Table.parent' = Table.parent + s -> Table.current
  Made' = Made + s and Removed' = Removed + gone
  Landed' = Landed and Table.base' = Table.base
}

-- A reset of the branch: back to an earlier snapshot.
pred reset[s: Snapshot] {
  s in Table.current.^(Table.parent) and Table.current' = s
  Removed' = Removed + (Table.current.(Table.files) - s.(Table.files)) - s.(Table.files)
  Table.parent' = Table.parent and Table.files' = Table.files and Made' = Made
  Landed' = Landed and Table.base' = Table.base
}

pred stutter { sameTable and Landed' = Landed and Table.base' = Table.base }
pred step {
  stutter or (some a: Append | prepare[a] or land[a]) or (some s: Snapshot | reset[s])
  or (some s: Snapshot, f: File | remove[s, f])
}
fact trace { init and always step }

-- An append adds its own files and nothing else, whatever happened since it was prepared.
pred appendsAddOnlyTheirFiles {
  always all a: Append | land[a] implies
    Table.current'.(Table.files') = Table.current.(Table.files) + a.adds
}
-- A client that read rows which a reset removed does not build on them.
pred resetsAreNotContinued {
  always all a: Append | land[a] implies Table.base[a] in Table.current.*(Table.parent)
}
pred removedStaysRemoved { always no Table.current.(Table.files) & Removed }

check AppendsAddOnlyTheirFiles { sound implies appendsAddOnlyTheirFiles } for 3 but 6..6 steps expect 0
check ResetsAreNotContinued { sound implies resetsAreNotContinued } for 3 but 6..6 steps expect 0
check RemovedStaysRemoved { sound implies removedStaysRemoved } for 3 but 6..6 steps expect 0
check TwinParentNotAncestor { without[ParentIsAncestor] implies resetsAreNotContinued } for 3 but 6 steps expect 1
check TwinAllEntriesAdded { without[OwnEntriesOnly] implies appendsAddOnlyTheirFiles } for 3 but 6 steps expect 1
check TwinAllEntries { without[OwnEntriesOnly] implies removedStaysRemoved } for 3 but 6 steps expect 1
run Everything {
  sound
  eventually #Landed > 1
  eventually some s: Snapshot | reset[s]
} for 3 but 6 steps expect 1
