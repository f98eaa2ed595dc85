package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// inboxVersion begins an encoded inbox position. The former JSON encoding begins with a brace. Unsigned varints
// follow: the epoch, the newest digest, then for this epoch and each earlier one the highest number and, if that is
// not 0, the words of the window. Empty windows at the end are left out.
const inboxVersion = 1

func encodeInbox(p InboxPosition) []byte {
	b := append(make([]byte, 0, 64), inboxVersion)
	b = binary.AppendUvarint(b, uint64(p.Epoch))
	b = binary.AppendUvarint(b, uint64(p.Digest))
	b = appendWindow(b, p.Highest, p.Window)
	n := len(p.Earlier)
	for n > 0 && p.Earlier[n-1].Highest == 0 {
		n--
	}
	for _, w := range p.Earlier[:n] {
		b = appendWindow(b, w.Highest, w.Window)
	}
	return b
}

func appendWindow(b []byte, highest fault.Seq, window [servicenet.WindowWords]uint64) []byte {
	b = binary.AppendUvarint(b, uint64(highest))
	if highest == 0 {
		return b
	}
	for _, w := range window {
		b = binary.AppendUvarint(b, w)
	}
	return b
}

func decodeInbox(node, half string, b []byte) (InboxPosition, error) {
	p := InboxPosition{Origin: fault.Origin{Node: fault.NodeID(node)}}
	var err error
	if p.Origin.Half, err = fault.ParseHalf(half); err == nil {
		if len(b) > 0 && b[0] == '{' {
			err = decodeOldInbox(&p, b)
		} else {
			err = decodeBinary(&p, b)
		}
	}
	if err != nil {
		return InboxPosition{}, fmt.Errorf("inbox position of %s/%s: %w", node, half, err)
	}
	return p, nil
}

// uvarints reads numbers until the first error.
type uvarints struct {
	b   []byte
	bad bool
}

func (u *uvarints) next() uint64 {
	v, n := binary.Uvarint(u.b)
	if n <= 0 {
		u.b, u.bad = nil, true
		return 0
	}
	u.b = u.b[n:]
	return v
}

func (u *uvarints) window() (highest fault.Seq, window [servicenet.WindowWords]uint64) {
	if highest = fault.Seq(u.next()); highest > 0 {
		for i := range window {
			window[i] = u.next()
		}
	}
	return highest, window
}

func decodeBinary(p *InboxPosition, b []byte) error {
	if len(b) == 0 || b[0] != inboxVersion {
		return fmt.Errorf("given %d bytes of another version: want version %d", len(b), inboxVersion)
	}
	u := uvarints{b: b[1:]}
	p.Epoch, p.Digest = fault.Epoch(u.next()), fault.Seq(u.next())
	p.Highest, p.Window = u.window()
	for i := 0; len(u.b) > 0; i++ {
		if i == len(p.Earlier) {
			return fmt.Errorf("earlier: given more than %d: want at most so many", len(p.Earlier))
		}
		p.Earlier[i].Highest, p.Earlier[i].Window = u.window()
	}
	if u.bad {
		return errors.New("given less than a whole position")
	}
	return nil
}
