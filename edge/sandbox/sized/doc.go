// Package sized makes file systems of a fixed size for what sandboxed code may
// write: an ext4 in a sparse file behind a loop device.
//
// It guarantees that no more of the host's disk is taken than the size says,
// whatever is written there and however fast, that what is deleted inside is given
// back, and that nothing is left when the mount is gone: the file has no name from
// the start, and the loop device ends with its last user. It needs root, loop
// devices and mkfs.ext4, refuses without, and mounts nothing that others made.
// Test it as root; elsewhere its tests skip and say so.
package sized
