package host

import (
	"encoding/binary"

	"github.com/lofamo/lofamo/internal/agent/half"
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
