package agent

import (
	"context"
	"log/slog"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/maskfile"
)

// saveMask keeps the channel mask. It is in force all the same when the disk does not take it; the next start then asks for the
// supervisors' word, or has an older one.
func (d *dnpHalf) saveMask() {
	state, _ := d.core.Mask()
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
