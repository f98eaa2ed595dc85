package host

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// tellDeadHosts tells the DNP half which neighbours have a dead host in the fault map: at once if that has changed, and again
// each second while there are any (dnpcore.DeadHostsLife).
func (h *hostHalf) tellDeadHosts(changed bool) {
	dead := h.core.DeadHosts()
	if dead == h.deadHosts && (changed || dead == [grid.NumDirections]bool{}) {
		return
	}
	if h.box.SendSpare(mailbox.Message{Type: mailbox.DeadHosts, Payload: half.AppendDirections(nil, dead)}) == nil {
		h.deadHosts = dead
	}
}

// settingRepeat is the time between two attempts to set registers: a DNP half of an earlier version ignores them.
const settingRepeat = 5 * time.Second

// Attempts that have no effect become rarer, up to settingRarest apart. settingRefused is the attempt at which that is a warning: the
// window may lose an earlier one.
const (
	settingRarest  = time.Minute
	settingRefused = 3
)

// setRegisters sets the registers of Table VI that differ from this half's configuration. Without a window it has nothing
// to do: both halves read one configuration.
func (h *hostHalf) setRegisters(now time.Time) {
	if h.window == nil || now.Before(h.setAt) {
		return
	}
	var differ []half.Setting
	for _, s := range h.Settings() {
		if v, err := h.page.File.Load(s.Addr); err == nil && !s.In(v) {
			differ = append(differ, s)
		}
	}
	if len(differ) == 0 {
		h.settings = settingTries{}
		return
	}
	if h.box.SendSpare(mailbox.Message{Type: mailbox.Setting, Payload: half.AppendSettings(nil, differ)}) != nil {
		return
	}
	level, text := h.settings.sent(now, differ)
	h.setAt = h.settings.next
	h.Log.Log(context.Background(), level, text, "registers", fmt.Sprint(differ))
}

// settingTries counts the attempts to set the same registers to the same values.
type settingTries struct {
	last []half.Setting
	n    int
	next time.Time // of the next attempt
}

// sent notes an attempt at setting these registers, and returns the line for the log. The DNP half refuses values that contradict its
// own, and one of an earlier version ignores them all: then attempts become rarer, and a warning comes once.
func (s *settingTries) sent(now time.Time, differ []half.Setting) (slog.Level, string) {
	if !slices.Equal(s.last, differ) {
		s.last, s.n = differ, 0
	}
	s.n++
	s.next = now.Add(min(settingRepeat<<min(s.n-1, 10), settingRarest))
	switch s.n {
	case 1:
		return slog.LevelInfo, "setting registers of the DNP half as this half's configuration says"
	case settingRefused:
		return slog.LevelWarn, "the DNP half does not take these register values: its log says why, unless it is of an earlier version"
	}
	return slog.LevelDebug, "setting registers of the DNP half again"
}

// refused returns the names of the registers that the DNP half does not take; nil: none, or too few attempts to know.
func (s *settingTries) refused() (names []string) {
	if s.n < settingRefused {
		return nil
	}
	for _, v := range s.last {
		names = append(names, v.Addr.String())
	}
	return names
}
