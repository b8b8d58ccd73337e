// Package plan says what a Vault or OpenBao server must have for Bivouac, shows
// what differs there, and applies it.
//
// It owns the list of mounts, policies, roles and quotas as data: what is printed
// is what is compared is what is written. It guarantees that applying twice changes
// nothing the second time, that nothing of the server is deleted, and that nothing
// is touched which it does not name. It refuses to change a mount of another type:
// whatever is in it belongs to somebody. Test it with go test alone; vaultpolicy
// applies it to real servers.
package plan
