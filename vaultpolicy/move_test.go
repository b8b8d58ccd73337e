package vaultpolicy

import (
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

// OpenGrant opens nothing: nothing moved here.
func (plainTrust) OpenGrant([]byte) (authority.Grant, authority.Rotation, error) {
	return authority.Grant{}, "", protocol.Errorf(protocol.CodePermissionDenied, "not of the keyring")
}
