// Package gateway sends http tools: it fills a request's template from checked
// arguments, injects one credential and reads a bounded answer.
//
// It guarantees that arguments change neither host, scheme nor path segments
// (RFC 3986: everything but unreserved characters is percent-encoded, dot
// segments are refused), that every argument is used and no placeholder is left,
// that the credential is in one header and in nothing that comes back, in any
// encoding (INV-17), and that the caller learns whether a byte may have left:
// NotSent is certain, anything else after the connection was made is
// outcome_unknown (INV-5). An answer is one whatever its status; whether its status
// says what became of an effect is the engine's to judge, for all tools alike.
//
// What only reads may be sent again and followed over the pages of a list, within
// bounds, at the destination itself, each request asked of the paths; an effect is sent
// again only where its upstream said that it did nothing and its class allows it.
//
// Destinations come from the broker's own file; an agent's definition names one
// and cannot widen it. It knows no capability and no call log. Test it with go
// test alone.
package gateway
