// Package vmtest runs the sandbox suites on machines that this one is not: control
// groups of version 2 alone, of version 1 alone, and version 2 delegated to a user.
//
// It owns the image of a small virtual machine, made of this machine's programs
// and a distribution's kernel, and runs it in software (qemu without KVM): a few
// seconds a machine. It is a test alone. Without qemu-system-x86_64 or a kernel it
// skips and says how to get them: `make vm`. Nothing of it is part of a binary.
package vmtest
