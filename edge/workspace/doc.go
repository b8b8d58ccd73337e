// Package workspace moves the files of a coding turn: Pack makes a tar of a
// person's git folder, Stage unpacks it on a runner, Repo computes the canonical
// patch of what changed, and Apply brings a patch back into the folder.
//
// It guarantees that nothing which lies in a folder is ever executed: git runs
// with an empty environment and with hooks, filters, drivers, monitors and
// transports disarmed, file contents are read by this package and never by git,
// and the runner's git directory is its own, outside of the workspace. Equal
// trees give equal tars and equal digests. A patch that does not apply changes
// nothing.
//
// It refuses what a tar or a patch could use to leave the folder: absolute
// names and "..", links that point outside, devices and sockets, writes through
// links, and the protected names .git and .bivouac at any depth and in any case.
//
// Test it with go test and Debian's git; the tests plant executables at every
// place where git would run one, and prove first that git does run them.
package workspace
