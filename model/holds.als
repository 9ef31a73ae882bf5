/*
 * Holds: no build brings back what a reset removed from a branch.
 *
 * A reset holds the keys of the results that it removes. A build plans, opens and publishes in
 * separate steps; its opening makes the plan again in its own SQL transaction, and adopts there.
 */
module holds

abstract sig Rule {}
one sig HeldKeys, HeldAdoptions, PlanMadeAgain, OpenBlocksResets, SumsHeld extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Branch {}
-- The key of a result: its code and inputs. Results of one key are equal.
sig Result {}
-- A merge shows the result of another transaction.
sig Transaction { result: one Result, parent: lone Transaction }
fun history[t: Transaction]: set Transaction { t.*parent }

var sig Committed in Transaction {}
one sig Catalog {
  var view: Branch -> lone Transaction,
  var held, gone: Branch -> Result,
  -- Builds that have read the catalog, and builds with an OPEN transaction on their branch.
  var planned, opened: Branch -> lone Result
}

pred init {
  no Catalog.held and no Catalog.gone and no Catalog.planned and no Catalog.opened
  Committed = Branch.(Catalog.view).*parent
}

pred sameBuilds { Catalog.planned' = Catalog.planned and Catalog.opened' = Catalog.opened }
pred sameViews {
  Catalog.view' = Catalog.view and Committed' = Committed and sameHolds
}
pred sameHolds { Catalog.held' = Catalog.held and Catalog.gone' = Catalog.gone }

pred moves_[b: Branch, t: Transaction] {
  Catalog.view' = Catalog.view ++ b -> t and Committed' = Committed + t
}
pred adds[b: Branch, t: Transaction] {
  t not in Committed and t.parent = Catalog.view[b] and moves_[b, t]
}
pred endsHolds[b: Branch, results: set Result] {
  Catalog.held' = Catalog.held - b -> results and Catalog.gone' = Catalog.gone - b -> results
}
pred mayBring[b: Branch, r: Result] { r not in Catalog.held[b] }

-- Actions

pred plan[b: Branch, r: Result] {
  keeps[HeldKeys] implies mayBring[b, r]
  Catalog.planned' = Catalog.planned ++ b -> r and Catalog.opened' = Catalog.opened
  sameViews
}

-- Opens what is stale, if the plan is still what it would be now.
pred open_[b: Branch] {
  some Catalog.planned[b] and no Catalog.opened[b]
  (keeps[PlanMadeAgain] and keeps[HeldKeys]) implies mayBring[b, Catalog.planned[b]]
  Catalog.opened' = Catalog.opened + b -> Catalog.planned[b]
  Catalog.planned' = Catalog.planned - b -> Result and sameViews
}

-- Publishes a result of another branch in the SQL transaction that opens the build.
pred adopt[b: Branch, t: Transaction] {
  no Catalog.opened[b] and t.result = Catalog.planned[b]
  some s: Committed - history[Catalog.view[b]] | s.result = t.result
  (keeps[PlanMadeAgain] and keeps[HeldAdoptions]) implies mayBring[b, t.result]
  adds[b, t] and sameHolds
  Catalog.planned' = Catalog.planned - b -> Result and Catalog.opened' = Catalog.opened
}

pred publish[b: Branch, t: Transaction] {
  t.result = Catalog.opened[b] and adds[b, t] and sameHolds
  Catalog.opened' = Catalog.opened - b -> Result and Catalog.planned' = Catalog.planned
}

-- The process stops, or another one takes over.
pred abort[b: Branch] {
  some Catalog.opened[b] and Catalog.opened' = Catalog.opened - b -> Result
  Catalog.planned' = Catalog.planned and sameViews
}

-- A build that a person forces.
pred force[b: Branch, t: Transaction] {
  no Catalog.opened[b] and adds[b, t]
  endsHolds[b, t.result] and sameBuilds
}

-- A merge of the view of another branch.
pred merge[b, from: Branch] {
  no Catalog.opened[b] and b != from
  Catalog.view[b] in history[Catalog.view[from]] - Catalog.view[from]
  moves_[b, Catalog.view[from]]
  endsHolds[b, (history[Catalog.view[from]] - history[Catalog.view[b]]).result]
  sameBuilds
}

-- Back to an earlier transaction. Everything above it goes, not only the view.
pred reset[b: Branch, t: Transaction] {
  keeps[OpenBlocksResets] implies no Catalog.opened[b]
  t in history[Catalog.view[b]] - Catalog.view[b]
  let removed = (history[Catalog.view[b]] - history[t]).result,
      holds_ = (keeps[SumsHeld] implies removed else Catalog.view[b].result) {
    Catalog.held' = Catalog.held + b -> holds_ - b -> t.result
    Catalog.gone' = Catalog.gone + b -> removed - b -> t.result
  }
  moves_[b, t] and sameBuilds
}

-- Back to a transaction that a reset removed.
pred resetForward[b: Branch, t: Transaction] {
  keeps[OpenBlocksResets] implies no Catalog.opened[b]
  t in Committed and Catalog.view[b] in history[t] - t
  endsHolds[b, (history[t] - history[Catalog.view[b]]).result]
  moves_[b, t] and sameBuilds
}

pred stutter { sameViews and sameBuilds }

pred step {
  stutter
  or (some b: Branch, r: Result | plan[b, r])
  or (some b: Branch | open_[b] or abort[b])
  or (some b, c: Branch | merge[b, c])
  or (some b: Branch, t: Transaction |
    adopt[b, t] or publish[b, t] or force[b, t] or reset[b, t] or resetForward[b, t])
}

fact trace { init and always step }

-- Promises. `gone` follows what resets removed and what brought it back, whatever the rules hold.

pred buildsDoNotBringBack {
  always all b: Branch, t: Transaction | publish[b, t] implies t.result not in Catalog.gone[b]
}
pred adoptionsDoNotBringBack {
  always all b: Branch, t: Transaction | adopt[b, t] implies t.result not in Catalog.gone[b]
}

check BuildsDoNotBringBack { sound implies buildsDoNotBringBack } for 2 but 4 Transaction, 6..6 steps expect 0
check AdoptionsDoNotBringBack { sound implies adoptionsDoNotBringBack } for 2 but 4 Transaction, 6..6 steps expect 0

check TwinResetNotHeld { without[HeldKeys] implies buildsDoNotBringBack } for 2 but 4 Transaction, 6 steps expect 1
check TwinAdoptedBack { without[HeldAdoptions] implies adoptionsDoNotBringBack } for 2 but 4 Transaction, 6 steps expect 1
check TwinPlanBelieved { without[PlanMadeAgain] implies buildsDoNotBringBack } for 2 but 4 Transaction, 6 steps expect 1
check TwinResetBelowOpenBuild { without[OpenBlocksResets] implies buildsDoNotBringBack } for 2 but 4 Transaction, 6 steps expect 1
check TwinViewAloneHeld { without[SumsHeld] implies buildsDoNotBringBack } for 2 but 4 Transaction, 6 steps expect 1

run Everything {
  sound
  eventually some b: Branch, t: Transaction | reset[b, t]
  eventually some b: Branch, t: Transaction | adopt[b, t]
  eventually some b: Branch, t: Transaction | force[b, t]
} for 2 but 4 Transaction, 6 steps expect 1
