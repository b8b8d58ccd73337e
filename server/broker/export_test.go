package broker

import "bivouac/edge/protocol"

// Refused is a row of the table of refusals.
func Refused(by Refusal) (advice string, codes map[protocol.Code]bool) {
	codes = map[protocol.Code]bool{}
	for _, c := range refusals[by].codes {
		codes[c] = true
	}
	return refusals[by].advice, codes
}
