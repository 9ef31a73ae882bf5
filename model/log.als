/*
 * The log: publications are numbered in the order in which readers can see them.
 *
 * Several servers publish at once. Each locks the counter, takes the next number and commits; the
 * counter is the last lock, and is released by the commit.
 */
module log
open util/ordering[Number]

abstract sig Rule {}
one sig CounterHeldToCommit extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Number {}
sig Server {}
one sig Counter { var drawn: Server -> lone Number }
-- Numbers of committed publications.
var sig Visible in Number {}
-- Numbers that were drawn and whose transaction was rolled back.
var sig Lost in Number {}

fun taken: set Number { Visible + Lost + Server.(Counter.drawn) }

pred init { no Counter.drawn and no Visible and no Lost }

-- Takes the next number, under the lock of the counter.
pred draw[s: Server] {
  no Counter.drawn[s]
  keeps[CounterHeldToCommit] implies no Counter.drawn
  -- A rolled back transaction also rolls the counter back.
  let free = Number - (keeps[CounterHeldToCommit] implies Visible else taken) {
    some free and Counter.drawn' = Counter.drawn + s -> min[free]
  }
  Visible' = Visible and Lost' = Lost
}

pred commit[s: Server] {
  some Counter.drawn[s]
  Visible' = Visible + Counter.drawn[s] and Counter.drawn' = Counter.drawn - s -> Number
  Lost' = Lost
}

-- The server stops, or loses its connection, before it commits.
pred crash[s: Server] {
  some Counter.drawn[s] and Counter.drawn' = Counter.drawn - s -> Number
  Visible' = Visible and Lost' = Lost + Counter.drawn[s] - Visible
}

pred stutter { Counter.drawn' = Counter.drawn and Visible' = Visible and Lost' = Lost }
pred step { stutter or some s: Server | draw[s] or commit[s] or crash[s] }
fact trace { init and always step }

-- A moment is every publication up to a number that was visible: it never changes.
fun moment[n: Number]: set Number { Visible & (n + prevs[n]) }
fun momentAfter[n: Number]: set Number { Visible' & (n + prevs[n]) }
pred momentsNeverChange { always all n: Visible | momentAfter[n] = moment[n] }

check MomentsNeverChange { sound implies momentsNeverChange } for 4 but 8..8 steps expect 0
check TwinCounterReleasedEarly { without[CounterHeldToCommit] implies momentsNeverChange } for 4 but 8 steps expect 1
run Everything {
  sound
  eventually #Visible > 1
  eventually some s: Server | crash[s]
} for 4 but 8 steps expect 1
