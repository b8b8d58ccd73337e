//go:build !bug_no_intent

package engine

import "bivouac/server/session"

// plantedNoIntent is a bug that the build tag bug_no_intent plants: a gateway
// action is sent before its intent is durable. Tests prove that they find it.
const plantedNoIntent = false

func (w *turnTx) sendUnrecorded(session.Action) error { return nil }
