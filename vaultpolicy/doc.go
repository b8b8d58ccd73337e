// Package vaultpolicy holds grants and credentials in Vault (1.13 or later) or
// OpenBao (2.5 or later): the Authority port of the broker.
//
// A grant is an orphan, periodic token of the server, with an entry in an index that
// an admin reads with plain commands, sealed with a key of its person in transit.
// The credential of one action is a batch child of that token, and what it reads
// from the key-value engine. So whoever revokes the token, disables the entity, or
// deletes the entry has ended the grant, without asking Bivouac. Where broker.hcl says
// so, an engine issues the credential under that token instead: a database user, a
// client certificate, a signature.
//
// It guarantees that nothing is minted which the server would not give (the mint is
// the gate, INV-13), that a grant which ended is told of within Poll or as soon as an
// audit line wakes it, whatever else is being looked up, and that silence of the server
// ends no grant but refuses all of them after Grace. Another server at its address is silence too, until the broker
// starts anew. It refuses to write policies: what a credential's name reaches
// is the admin's word. It holds no values in memory and no token on disk. The trust
// root stays in the broker's keyring. Test it with go test alone; tests against real
// servers say so loudly where none is there.
package vaultpolicy
