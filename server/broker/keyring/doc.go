// Package keyring is the embedded Authority and the root of trust of a
// deployment: one file, encrypted with age under an identity file beside it, both
// readable by their owner alone.
//
//	keyring.age     root key and certificate, receipt key, seal identity,
//	                credentials by tenant, grants, enrolled servers
//	keyring.key     the age identity that opens it, plain or sealed with a passphrase
//	server-codes/   hashes of enrolment codes
//	lock            held by the one broker that runs on the directory
//
// It guarantees that every change is durable before it is answered (temp, fsync,
// rename, fsync of the directory), that files which others may read are refused
// with the command that mends them, that a sealed grant opens only while the
// keyring lists it alive (INV-13), and that nothing prints a key. What leaves the
// process is signatures, certificates and the one credential of one request.
//
// The root key signs: leaf certificates, statements about hourly keys and the
// seal recipient. Test it with go test alone; it passes authoritytest.
package keyring
