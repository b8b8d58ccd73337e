// Package placement says which runners may take an attempt, in which order, and
// for every other runner why not, in words for people. It is pure: an attempt
// and the fleet as it is now give a ranking.
//
// It guarantees that a runner is never weaker than what was asked for (INV-11):
// boundary, limits class, binding, exact runners, adapter, system; nothing falls
// back. It refuses to name runners that the principal neither owns nor may use,
// and to know what an attempt works for.
package placement
