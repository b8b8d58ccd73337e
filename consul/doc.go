// Package consul owns paths: who may reach what, as Consul's service-intentions
// say it. It parses and evaluates the entries, and watches them as files; consul/intentions
// watches them in a Consul server, behind the same port, and this package evaluates.
//
// One entry a file, in HCL (*.hcl) or in JSON as Consul prints it (*.json):
//
//	Kind = "service-intentions"
//	Name = "weather"                                  # destination
//	Sources = [
//	  { Name = "agent-assistant", Action = "allow" },
//	  { Name = "*",               Action = "deny" },
//	]
//
// or, instead of an Action, with Permissions about single requests:
//
//	{ Name = "agent-poet", Permissions = [
//	  { Action = "deny",  HTTP = { PathPrefix = "/v1/admin" } },
//	  { Action = "allow", HTTP = { PathPrefix = "/v1/", Methods = ["GET"],
//	                               Header = [{ Name = "x-env", Exact = "test" }] } },
//	] }
//
// The most exact pair decides, with Consul's precedence: an exact destination
// goes before "*", then an exact source before "*". Nothing is merged; what no
// entry names is denied. Of a source with Permissions the first that matches
// decides, and a request that none matches is denied, whatever a wider source
// says. A path is the one on the wire, without its query, in every form in which
// an upstream may read it: as sent, decoded, cleaned. Headers match as Envoy has
// it: values joined with commas, expressions over the whole, and one that is not
// there fits an inverted Present alone.
//
// It guarantees default deny, and that what it cannot understand allows nothing:
// an entry with an error denies its destination, JWT is refused with file and line
// instead of being ignored, a permission that asks for the header of a credential
// denies, and a file whose destination cannot even be read takes the force from
// every "*" destination. It refuses unknown fields. The suite pathstest holds for
// every implementation of the port.
package consul
