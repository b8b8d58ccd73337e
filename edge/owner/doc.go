// Package owner reads edge.hcl, in which the owner of a machine says what a
// runner may do there. It only narrows: a server, an agent or a profile can ask
// for less than it allows, never for more (INV-10).
//
// Over some of it the owner may hold a second key: that is done only after a yes on
// the machine itself.
//
// A fresh file allows nothing on the machine itself: no folder, no toolchain.
// Validate lists every problem with its line. Other packages act on the Policy;
// this one refuses I/O beyond reading the file and looking at the named paths.
package owner
