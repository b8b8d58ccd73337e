// Package intentions is the Paths port on a Consul server or agent: who may reach what,
// as its intentions say it. It owns the watches, one for each destination, and the age of
// what they learned. Package consul evaluates, as it does for files.
//
// A destination is asked about by name (`connect/intentions/match`), and never found in a
// list: a list is thinned out by access control without a word, and a deny that is not
// shown would hide behind a wider allow that is. What is asked is held by the server until
// something changes, and at most for a third of Fresh, so that an answer is never older
// than the network makes it. Answers are consistent reads of the leader.
//
// It guarantees default deny, whatever Consul's own default is; that an intention it does
// not understand to the last field closes its destination, with a reason; that a server
// which cannot be asked opens nothing: after Fresh nothing new begins, and after Grace
// nothing that is open goes on (both are counted from when the newest answer was asked
// for, suspend included); that a change is announced after it counts; and that a server
// which answers at once, for ever, is asked a few times a second and no more. An index
// that goes backwards, or is zero, begins anew. It refuses to guess: who asks before the
// first answer learns that nobody knows. It never writes to Consul.
package intentions
