// Package jobs is Nomad's side of Bivouac: the job files that an operator runs, and what
// the server asks of a Nomad that runs its runners. It owns the nomad block of
// server.hcl, and the form of the jobs that start supervisors of single attempts
// (allocations.go, allocation_job.go; allocation_word.go says what became of one, and
// capacity.go what a node has for one in all).
//
// It guarantees that a configuration is refused at the start with every reason at once;
// that Nomad is spoken to over TLS, or on the loopback; and that files of tokens,
// authorities and keys are read anew for each question, so that what is renewed counts. It
// refuses to decide: Nomad starts runners, and what becomes of a turn is judged by its
// lease (ARCHITECTURE.md). Of HashiCorp's code only github.com/hashicorp/nomad/api is
// linked, which is MPL-2.0. Test it with go test; with a nomad on PATH its tests run that
// one too, and say so loudly where there is none.
package jobs
