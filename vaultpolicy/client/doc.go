// Package client asks one Vault or OpenBao server and says what its answers mean.
//
// It owns the connection: its trust, its bounds, and the one table from an answer
// to a Kind, so that nobody else reads a status or a text of these servers. It
// guarantees that a token goes to the configured server alone, that no token
// stands in an error or a log, that every request ends in time and that no answer
// is larger than MaxAnswer. What has not the server's own form, as an ingress or a
// gateway answers, is no answer, whatever its status. It refuses to send a token in clear over a network, and
// it takes nothing from the environment: who calls has decided. Test it with go
// test alone; a small HTTP server stands in for what a real one does not do on
// demand.
package client
