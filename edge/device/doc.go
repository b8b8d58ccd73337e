// Package device runs the fixed local actions on a person's machine: files.list,
// files.read, files.write and, for approvals, files.digest. A path is
// <folder name>/<relative path>; the owner names folders in edge.hcl, and no
// other file can be reached.
//
// It guarantees that nothing outside a named folder is opened, links that leave
// it included; that only regular files are read or replaced, and opening one
// never blocks; that Bivouac's own directories are out of reach even inside a
// folder; that files.write happens only over the file that was approved, whole
// or not at all; and that every answer is bounded.
//
// It refuses policy of the server: what the owner did not name is denied here,
// whatever was offered. Outputs are JSON:
//
//	files.list   {"entries":[{"name","kind":"file|folder|link|other","size"}],"truncated"}
//	files.read   {"content","encoding":"utf-8|base64","size","truncated","digest"}
//	files.write  {"size","digest"}
//	files.digest {"exists","size","digest"}
//
// Digests are "sha256:" and 64 hexadecimal digits; files.read gives one only
// when it gives the whole file.
package device
