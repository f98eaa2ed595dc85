package agent

import (
	"context"
	"log/slog"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/maskfile"
)

// saveMask has the channel mask kept. It waits for no disk: who holds the mutex for longer than a few write periods is taken for dead.
func (d *dnpHalf) saveMask() {
	state, _ := d.core.Mask()
	select {
	case <-d.masks: // older
	default:
	}
	d.masks <- state
}

// keepMasks is the goroutine that waits for the disk. A mask that the disk does not take is in force all the same; the next start then
// asks for the supervisors' word, or has an older one.
func (d *dnpHalf) keepMasks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			select {
			case state := <-d.masks:
				d.keepMask(state)
			default:
			}
			return
		case state := <-d.masks:
			d.keepMask(state)
			d.step(dnpcore.MaskKept{State: state})
		}
	}
}

func (d *dnpHalf) keepMask(state chanmask.State) {
	if err := maskfile.Save(d.statePath(maskfile.Name), state); err != nil {
		d.log.Error("channel mask not kept: it is lost with the next restart", "err", err)
	}
}

func (d *dnpHalf) seal(s dnpcore.Seal) ([]byte, error) {
	if s.Reports != nil {
		return servicenet.SealReports(s.Reports, s.Status, d.signer, servicenet.SealOptions{Health: s.Health})
	}
	if s.Findings != nil {
		return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_DiagnosisFindings{DiagnosisFindings: s.Findings}}, d.signer)
	}
	if s.Procedure != nil {
		return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: s.Procedure}}, d.signer)
	}
	if s.Mask != nil {
		return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: s.Mask}}, d.signer)
	}
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: s.Answer}}, d.signer)
}

func (d *dnpHalf) logNotes(notes []dnpcore.Note) {
	for _, n := range notes {
		level := slog.LevelInfo
		switch n.Kind {
		case dnpcore.NoteSelfTest, dnpcore.NoteLate, dnpcore.NoteCorrupt, dnpcore.NoteUnreadable, dnpcore.NoteSensorStale:
			level = slog.LevelWarn
		case dnpcore.NoteHost:
			if d.core.Verdict() == watchdog.Stale {
				level = slog.LevelWarn
			}
		case dnpcore.NoteSelfTested, dnpcore.NoteRefused, dnpcore.NoteNeighbour:
			level = slog.LevelDebug
		default:
		}
		d.log.Log(context.Background(), level, n.Text)
	}
}
