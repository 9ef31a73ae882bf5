/*
 * Publications to lakeFS: an intent, an effect outside the catalog, and a record.
 *
 * The owner of a move records an intent, moves the lakeFS branch, and records which attempt made
 * the commit. Owners and recoveries may stop between any two steps. Recovery takes an intent over,
 * reads the branch, and records whether the move landed. Other writers move the branch at any time.
 */
module intents

abstract sig Rule {}
one sig IntentFirst, RequestEndsWithLease, OnlyExpired, ReadAfterTakeover, OwnerSettles,
  HeadNamesExecution, ForeignHeadIsUnknown, RecoveryMovesNothing, UndoOfOwnHead extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

-- The commit's metadata names the execution that made it; a commit of another writer has none.
sig Commit { parent: lone Commit, by: lone Move }
fact { no c: Commit | c in c.^parent }
-- A move is decided on a head, and is made by one request.
sig Move { expected: one Commit }
sig Recovery {}
abstract sig Landing {}
one sig Landed_, NotLanded, Unknown extends Landing {}

-- Moves whose intent is in the catalog, whose request is on its way or has been answered.
var sig Announced, Pending, Sent, Done in Move {}
-- The lease of the intent has ended; the process of the owner is gone.
var sig Expired, Dead in Move {}
-- What the catalog records: the maker of the commit, or what recovery found.
var sig Recorded in Move {}
one sig Store {
  var head: one Commit,
  var found: Move -> Landing,
  -- The recovery that owns an intent, and what one has read.
  var owner: Move -> lone Recovery,
  var read: Recovery -> Move -> lone Landing
}
fun history[c: Commit]: set Commit { c.*parent }
fun landed: set Move { history[Store.head].by }

pred init {
  no Announced and no Pending and no Sent and no Done and no Expired and no Dead and no Recorded
  no Store.found and no Store.owner and no Store.read
  no history[Store.head].by
}

pred sameMoves { Announced' = Announced and Sent' = Sent and Done' = Done and Dead' = Dead }
pred sameIntents {
  Pending' = Pending and Expired' = Expired and Store.owner' = Store.owner
}
pred sameReads { Store.read' = Store.read }
pred sameRecords { Recorded' = Recorded and Store.found' = Store.found }
pred sameHead { Store.head' = Store.head }

-- The owner

pred announce[m: Move] {
  m not in Announced + Dead and m.expected = Store.head
  Announced' = Announced + m and Sent' = Sent and Done' = Done and Dead' = Dead
  keeps[IntentFirst] implies Pending' = Pending + m else Pending' = Pending
  Expired' = Expired and Store.owner' = Store.owner
  sameReads and sameRecords and sameHead
}

-- lakeFS executes the request: one merge onto the head of the branch, whichever that is. The lease
-- is longer than the time limit of the request: this is the one rule here that needs a clock.
pred effect[m: Move, c: Commit] {
  m in Announced - Sent - Dead and c.by = m
  keeps[RequestEndsWithLease] implies m not in Expired
  c.parent = Store.head and Store.head' = c
  Sent' = Sent + m and Announced' = Announced and Done' = Done and Dead' = Dead
  sameIntents and sameReads and sameRecords
}

-- The owner removes a merge that landed on a commit of another writer, while it is the head.
pred undo[m: Move, c: Commit] {
  m in Sent - Done - Dead and c.by = m and c.parent != m.expected and c in history[Store.head]
  keeps[UndoOfOwnHead] implies Store.head = c
  Store.head' = c.parent
  Done' = Done + m and Announced' = Announced and Sent' = Sent and Dead' = Dead
  Pending' = Pending - (no Store.owner[m] implies m else none)
  Expired' = Expired and Store.owner' = Store.owner
  sameReads and sameRecords
}

-- The owner records the maker. If a recovery took the intent over, only the maker is recorded.
pred record[m: Move] {
  m in Sent - Done - Dead and m in landed
  Recorded' = Recorded + m and Store.found' = Store.found
  Done' = Done + m and Announced' = Announced and Sent' = Sent and Dead' = Dead
  Pending' = Pending - (no Store.owner[m] implies m else none)
  Expired' = Expired and Store.owner' = Store.owner
  sameReads and sameHead
}

-- Others

pred crash[m: Move] {
  m in Announced - Done - Dead and Dead' = Dead + m
  Announced' = Announced and Sent' = Sent and Done' = Done
  sameIntents and sameReads and sameRecords and sameHead
}

pred expire[m: Move] {
  m in Pending - Expired and Expired' = Expired + m
  Pending' = Pending and Store.owner' = Store.owner
  sameMoves and sameReads and sameRecords and sameHead
}

pred foreign[c: Commit] {
  no c.by and c.parent = Store.head and Store.head' = c
  sameMoves and sameIntents and sameReads and sameRecords
}

-- Recovery

-- Its own lease may end at once, so another recovery may follow.
pred takeOver[r: Recovery, m: Move] {
  m in Pending and (keeps[OnlyExpired] implies m in Expired)
  Store.owner' = Store.owner ++ m -> r and Expired' = Expired and Pending' = Pending
  Store.read' = Store.read - (keeps[ReadAfterTakeover] implies r -> m -> Landing else none -> none -> none)
  sameMoves and sameRecords and sameHead
}

fun landing[m: Move]: Landing {
  (m in Store.head.by or (not keeps[HeadNamesExecution] and Store.head != m.expected)) implies Landed_
  else (Store.head = m.expected or not keeps[ForeignHeadIsUnknown]) implies NotLanded
  else Unknown
}

pred classify[r: Recovery, m: Move] {
  m in Pending and no Store.read[r][m]
  keeps[ReadAfterTakeover] implies Store.owner[m] = r
  Store.read' = Store.read + r -> m -> landing[m]
  sameMoves and sameIntents and sameRecords
  keeps[RecoveryMovesNothing] implies sameHead
    else Store.head' = (Store.head.by = m implies m.expected else Store.head)
}

pred settle[r: Recovery, m: Move] {
  some Store.read[r][m] and (keeps[OwnerSettles] implies m in Pending and Store.owner[m] = r)
  Store.found' = Store.found + m -> Store.read[r][m]
  Recorded' = Recorded + (Store.read[r][m] = Landed_ implies m else none)
  Pending' = Pending - m and Expired' = Expired and Store.owner' = Store.owner
  Store.read' = Store.read - r -> m -> Landing
  sameMoves and sameHead
}

pred stutter { sameMoves and sameIntents and sameReads and sameRecords and sameHead }

pred step {
  stutter
  or (some m: Move | announce[m] or record[m] or crash[m] or expire[m])
  or (some m: Move, c: Commit | effect[m, c] or undo[m, c])
  or (some c: Commit | foreign[c])
  or (some r: Recovery, m: Move | takeOver[r, m] or classify[r, m] or settle[r, m])
}

fact trace { init and always step }

-- Promises

-- An effect is recorded, or its intent remains, or recovery has said that it does not know.
pred effectsAreKnown { always landed in Recorded + Pending + Store.found.Unknown }
pred recordsAreTrue { always Recorded in Sent }
-- What recovery calls not landed never lands: the next attempt may go on from the same head.
pred refusalsAreFinal { always no landed & Store.found.NotLanded }
pred settledOnce { always all r: Recovery, m: Move | settle[r, m] implies no Store.found[m] }
-- The branch loses no commit but a merge that its own maker removes.
pred noCommitIsLost {
  always (history[Store.head] in history[Store.head']
    or (some m: Move, c: Commit | undo[m, c] and history[Store.head] - history[Store.head'] = c))
}

check EffectsAreKnown { sound implies effectsAreKnown } for 2 but 4 Commit, 7..7 steps expect 0
check RecordsAreTrue { sound implies recordsAreTrue } for 2 but 4 Commit, 7..7 steps expect 0
check RefusalsAreFinal { sound implies refusalsAreFinal } for 2 but 4 Commit, 7..7 steps expect 0
check SettledOnce { sound implies settledOnce } for 2 but 4 Commit, 7..7 steps expect 0
check NoCommitIsLost { sound implies noCommitIsLost } for 2 but 4 Commit, 7..7 steps expect 0

check TwinEffectBeforeIntent { without[IntentFirst] implies effectsAreKnown } for 2 but 4 Commit, 9 steps expect 1
check TwinRequestOutlivesLease { without[RequestEndsWithLease] implies refusalsAreFinal } for 2 but 4 Commit, 9 steps expect 1
check TwinLiveOwnerTakenOver { without[OnlyExpired] implies refusalsAreFinal } for 2 but 4 Commit, 9 steps expect 1
check TwinReadBeforeTakeover { without[ReadAfterTakeover] implies refusalsAreFinal } for 2 but 4 Commit, 9 steps expect 1
check TwinSlowRecoverySettles { without[OwnerSettles] implies settledOnce } for 2 but 4 Commit, 9 steps expect 1
check TwinAnyNewHeadIsIts { without[HeadNamesExecution] implies recordsAreTrue } for 2 but 4 Commit, 9 steps expect 1
check TwinForeignHeadIsRefusal { without[ForeignHeadIsUnknown] implies refusalsAreFinal } for 2 but 4 Commit, 9 steps expect 1
check TwinRecoveryRollsBack { without[RecoveryMovesNothing] implies noCommitIsLost } for 2 but 4 Commit, 9 steps expect 1
check TwinUndoOfOthers { without[UndoOfOwnHead] implies noCommitIsLost } for 2 but 4 Commit, 9 steps expect 1

run Everything {
  sound
  eventually some m: Move | record[m]
  eventually some r: Recovery, m: Move | settle[r, m]
} for 2 but 4 Commit, 9 steps expect 1
