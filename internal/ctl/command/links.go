package command

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Minute is a time that people plan by.
func Minute(a *App, t time.Time) string {
	return t.In(a.Env.Location).Format("2006-01-02 15:04")
}

// MaskedLink names a link by both ends.
func MaskedLink(m *lofamov1.LinkMask) string {
	return fmt.Sprintf("%s/%s to %s", m.GetNode(), m.GetDirection(), m.GetPeer())
}

// masked describes a mask in a list of links.
func masked(a *App, m *lofamov1.LinkMask) string {
	return fmt.Sprintf("MASKED by %s since %s: %s", m.GetBy(), Minute(a, m.GetSince().AsTime()), Printable(m.GetReason()))
}
