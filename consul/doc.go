// Package consul owns paths: who may reach what, as Consul's service-intentions
// say it. It parses and evaluates the entries, and watches them as files; asking
// a Consul server comes later behind the same port.
//
// One entry a file:
//
//	Kind = "service-intentions"
//	Name = "weather"                                  # destination
//	Sources = [
//	  { Name = "agent-assistant", Action = "allow" },
//	  { Name = "*",               Action = "deny" },
//	]
//
// The most exact pair decides, with Consul's precedence: an exact destination
// goes before "*", then an exact source before "*". Nothing is merged; what no
// entry names is denied.
//
// It guarantees default deny, and that what it cannot understand allows nothing:
// an entry with an error denies its destination, L7 permissions and JWT are
// refused with file and line instead of being ignored, and a file whose
// destination cannot even be read takes the force from every "*" destination. It
// refuses unknown fields. The suite pathstest holds for every implementation of
// the port.
package consul
