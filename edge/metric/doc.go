// Package metric is the page of numbers that a process shows to whoever watches
// it: in the Prometheus text format, on an address of its own.
//
// It guarantees that a label takes only the values that were declared with it,
// and "other" for everything else: what a model, a person or a foreign machine
// says never becomes a label, so that the page neither grows nor tells. It
// refuses ids, names and texts: numbers and declared words are all that it can
// hold. Nothing on it is secret, and nothing on it can be changed from outside.
//
// What is counted belongs to the packages that declare it: server/metric for
// server and broker, edge for the daemon. Test it with go test alone.
package metric
