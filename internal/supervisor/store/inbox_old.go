package store

import (
	"encoding/json"
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// oldInbox is the former JSON encoding of an InboxPosition, without its origin, which the key has.
type oldInbox struct {
	Epoch   fault.Epoch                    `json:"epoch"`
	Highest fault.Seq                      `json:"highest"`
	Window  [servicenet.WindowWords]uint64 `json:"window"`
	Digest  fault.Seq                      `json:"digest"`
	Earlier []struct {
		Highest fault.Seq                      `json:"highest"`
		Window  [servicenet.WindowWords]uint64 `json:"window"`
	} `json:"earlier,omitempty"`
}

func decodeOldInbox(p *InboxPosition, b []byte) error {
	var v oldInbox
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if n := len(v.Earlier); n > servicenet.EarlierEpochs {
		return fmt.Errorf("earlier: given %d: want at most %d", n, servicenet.EarlierEpochs)
	}
	p.Epoch, p.Highest, p.Window, p.Digest = v.Epoch, v.Highest, v.Window, v.Digest
	for i, w := range v.Earlier {
		p.Earlier[i] = servicenet.InboxWindow(w)
	}
	return nil
}
