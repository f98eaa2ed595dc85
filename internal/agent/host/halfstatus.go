package host

import (
	"encoding/binary"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// onSpan handles the message with the span of the DNP half's certificate. A DNP half of an earlier version sends the
// end alone; other lengths are ignored.
func (h *hostHalf) onSpan(b []byte) {
	switch len(b) {
	case 8:
		h.dnpCert.Store(&half.Validity{Ends: int64(binary.BigEndian.Uint64(b))})
	case 16:
		h.dnpCert.Store(&half.Validity{Ends: int64(binary.BigEndian.Uint64(b)), Begins: int64(binary.BigEndian.Uint64(b[8:]))})
	}
}

// lookAtFares is called once a second.
func (h *hostHalf) lookAtFares(now time.Time) {
	h.NoteWrong(h.page, h.readers.Stuck(), h.core.SelfTest().Results(now))
	h.TellManager(h.core.Verdict(), h.core.SelfTest())
	own, tell := h.fares.Look(now)
	if own == nil {
		return
	}
	if tell {
		half.TellOther(h.box, own)
	}
	h.settle(now, h.core.Step(now, hostcore.Health{Half: fault.HalfHost, Health: own}))
}
