package host

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// settingRepeat is the time between two attempts to set registers: a DNP half of an earlier version ignores them.
const settingRepeat = 5 * time.Second

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
		return
	}
	if h.box.SendSpare(mailbox.Message{Type: mailbox.Setting, Payload: half.AppendSettings(nil, differ)}) == nil {
		h.setAt = now.Add(settingRepeat)
		h.Log.Info("registers of the DNP half are set as this half's configuration says", "registers", len(differ))
	}
}
