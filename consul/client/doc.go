// Package client asks a Consul server or agent, and is the one place that reads its
// answers and its refusals. It owns connections and the token that goes along, which is
// read from its file for every request.
//
// It guarantees that an answer is handed on as it came, so that whoever reads it can
// refuse what it does not know; that an answer of a server without a leader, or one that
// access control has thinned out, is no answer; that a token is in no error and follows
// no redirect; and that a connection over which nothing comes any more is given up. It
// refuses plain HTTP to another machine. It knows no intention.
package client
