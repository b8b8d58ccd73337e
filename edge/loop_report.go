package edge

import (
	"context"
	"errors"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// tickReport acknowledges deliveries that are dealt with and reports results of
// device actions. Records of turns are reported by their own ops, as they come.
func (d *Daemon) tickReport(ctx context.Context) (bool, error) {
	c := d.line.get()
	if c == nil {
		return false, nil // the link loop wakes us
	}
	var failed []error
	if seq, ok := d.mailbox.due(); ok {
		_, err := call(ctx, d.client.Acknowledge, &runnerv1.AcknowledgeRequest{Epoch: c.epoch, Seq: seq})
		if err == nil {
			d.mailbox.acknowledged(seq)
		}
		failed = append(failed, d.superseded(c, err))
	}
	for id, e := range d.actions.unreported() {
		failed = append(failed, d.superseded(c, d.reportAction(ctx, c, id, e)))
	}
	return false, errors.Join(failed...)
}

// reportAction sends all records of one device attempt. When the server has
// them, as a result or as evidence, the attempt is over here.
func (d *Daemon) reportAction(ctx context.Context, c *connection, id protocol.AttemptID, e actionEntry) error {
	res, err := call(ctx, d.client.Report, &runnerv1.ReportRequest{
		AttemptId: id.String(), Fence: int64(e.fence), Epoch: c.epoch, Records: e.records,
	})
	switch {
	case err == nil && res.GetAcceptedSeq() < int64(len(e.records)) && !res.GetEvidenceOnly():
		return protocol.Errorf(protocol.CodeUnavailable, "the server accepted records of attempt %s up to %d only", id, res.GetAcceptedSeq())
	case err == nil && !e.result:
		d.heard(id, res)
		return nil
	case err == nil:
	case transient(err) || isStaleEpoch(err):
		return err
	default:
		d.log.WarnContext(ctx, "the server refuses the records of an attempt for good", "attempt", id, "error", err)
		if !e.result {
			d.unheard(id, err)
			return nil
		}
	}
	d.table.remove(id)
	return d.actions.forget(id, nil)
}

// superseded ends the connection when a later one of this runner took over,
// or when the server cannot be reached on it.
func (d *Daemon) superseded(c *connection, err error) error {
	if isStaleEpoch(err) {
		d.line.drop(c, err)
		return nil
	}
	return err
}

func isStaleEpoch(err error) bool {
	return err != nil && protocol.CodeOf(err) == protocol.CodeStaleFence
}
