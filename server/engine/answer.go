package engine

import (
	"fmt"
	"net/http"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/session"
)

// answer is what broker and call log say of an upstream's answer: of an http tool, or
// of an MCP server's.
type answer interface {
	GetHttpStatus() int32
	GetFailed() bool
}

// saysNo reports an answer that is no success: an error status, or an MCP server's
// own word that the call failed.
func saysNo(a answer) bool { return a.GetHttpStatus() >= 400 || a.GetFailed() }

// unsure reports an answer that does not say whether an action's effect happened: it
// is written by what stands in front of the upstream, which may have passed the
// request on. What only reads has failed by any of them. INV-5.
func unsure(a session.Action, by answer) bool {
	return a.Effect != runtimev1.Effect_EFFECT_READ && inFront(by.GetHttpStatus())
}

// inFront reports a status with which a proxy speaks in the place of the server behind
// it (RFC 9110): no answer came, none that it understood, none in time, or the
// connection went. Proxies have their own numbers for the same beyond what is
// registered (520 to 530). 500 is not one of them: whoever had the request says that
// it could not fulfil it.
func inFront(status int32) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return status > http.StatusNetworkAuthenticationRequired
}

// notOfTheEffect ends the evidence of an answer that is unsure.
const notOfTheEffect = ", which does not say whether it was done"

// answerOf names an answer in evidence.
func answerOf(status int32, failed bool) string {
	if failed && status < 300 {
		return "a failure of the tool itself"
	}
	return fmt.Sprintf("HTTP %d", status)
}
