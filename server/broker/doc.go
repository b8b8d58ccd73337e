// Package broker adds the secret on the way out. It answers model calls, http tools,
// tools of MCP servers and commands on hosts under signed capabilities, keeps grants and credentials behind the
// Authority port, and is the root of trust of a deployment.
//
// It guarantees that every request passes one list of checks (admit.go), that
// nothing is admitted under a feed older than its limit and no flow outlives the
// authority ttl without one (INV-13), that nothing is spent beyond a slice or the
// broker's own caps (INV-19), that a tool's call is logged durably before it is
// sent and not sent twice (INV-4, INV-5), and that what was injected does not
// come back (INV-17).
//
// A no says its kind and what to do (refusal.go). A request is held against the
// paths twice: before it is made, and as it would leave. What takes authority away
// meanwhile, a floor, a path, a cap, closes what is open. Model calls that brought
// nothing are tried again by package provider's table, and never what streamed.
//
// Peers are proven by mutual TLS: roles.go is the table of who may call what. It
// refuses to decide for a server: what it may reach and spend is in its own file,
// and who may reach what is in the paths. It links no store and no engine.
//
// New starts nothing; Run serves until its context ends. All of it runs in
// virtual time: sockets, clocks and addresses come from outside.
package broker
