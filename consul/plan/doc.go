// Package plan says what Consul must have for Bivouac, shows what differs there, and
// applies it: a policy and a role of the broker's token, the deny under everything, and the
// protocol of what is reached over HTTP.
//
// It owns that list as data: what is printed is what is compared is what is written. It
// guarantees that applying twice changes nothing the second time, that nothing of Consul is
// deleted, that an entry which somebody wrote in between is not overwritten (it writes with
// the index that it compared), and that the other sources of an entry stay. It refuses to
// change what somebody decided otherwise: an allow under everything, or another protocol.
// It makes no token: whoever sets the broker up does, and puts it into a file. Test it with
// go test alone; consul/real_test.go applies it to a real server.
package plan
