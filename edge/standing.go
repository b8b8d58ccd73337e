package edge

import (
	"context"
	"time"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/state"
)

// standingTimeout bounds the question of Standing.
const standingTimeout = 5 * time.Second

// Standing asks the server whether it still knows this machine. It renews no lease of
// an epoch that no connection has: the server looks at the machine and changes
// nothing. known reports that the server said yes; a no is an error that names what to
// do, and any other error means that nobody knows.
func Standing(ctx context.Context, dir *state.Dir, network link.Network) (known bool, err error) {
	e, err := dir.Enrolment()
	if err != nil {
		return false, err
	}
	client, err := dialler(dir, e.Server, network)
	if err != nil {
		return false, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, standingTimeout)
	defer cancel()
	_, err = call(ctx, runnerv1connect.NewRunnerServiceClient(client, client.URL()).Renew, &runnerv1.RenewRequest{})
	switch {
	case err == nil || protocol.CodeOf(err) == protocol.CodeStaleFence:
		return true, nil
	case forgotten(err) && !recoverable(dir, err):
		return false, enrolAgain(dir, err)
	}
	return false, protocol.Errorf(protocol.CodeUnavailable, "the server could not be asked: %w", err)
}
