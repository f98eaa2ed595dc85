package replica

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
)

// FuzzDecodeRestated: another replica's restatement is refused, or every digest is of a known node, in range, and
// re-encodes identically.
func FuzzDecodeRestated(f *testing.F) {
	for _, req := range []*lofamov1.ForwardRequest{
		encodeRestated([]engine.Restated{restated("a", 1), restated("gone", 2)}, time.Unix(101, 0)),
		// the number of a half in its lowest byte
		{Restated: []*lofamov1.RestatedDigest{{Node: "a", Half: -254, Epoch: 1, Seq: 1, Words: 1, Path: 1}}},
		{Restated: []*lofamov1.RestatedDigest{{Node: "a", Half: 1, Epoch: 1, Seq: 1, Words: 1, Path: 257, HeldNs: 1<<64 - 1}}},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	now := time.Unix(500, 0)
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &lofamov1.ForwardRequest{}
		if proto.Unmarshal(b, req) != nil {
			return
		}
		got, err := decodeRestated(req.GetRestated(), now, knows{"a": true, "": true}.Known)
		if err != nil {
			return
		}
		said := map[string]bool{}
		for _, d := range req.GetRestated() {
			said[d.GetNode()+"/"+fault.Half(max(0, d.GetHalf())).String()] = d.GetHalf() > 0
		}
		for _, r := range got {
			if id := r.ID; !said[id.Origin.String()] || id.Epoch == 0 || id.Seq == 0 || !r.Path.Valid() || r.Held < 0 || r.Held > maxHeld {
				t.Fatalf("%v is taken as %+v", req, r)
			}
		}
		again, err := decodeRestated(encodeRestated(got, now).GetRestated(), now, func(fault.NodeID) bool { return true })
		if err != nil || len(again) != len(got) {
			t.Fatalf("%+v, and written and read again %+v, %v", got, again, err)
		}
	})
}
