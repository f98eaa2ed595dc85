package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// putIncident writes the record of an incident, or deletes it if in is nil.
func putIncident(t testing.TB, c *clientv3.Client, id string, in *lofamov1.Incident) {
	t.Helper()
	key, _, _ := store.IncidentKeys(id)
	if in == nil {
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		return
	}
	in.Id = id
	kv, err := store.IncidentPut(in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(t.Context(), kv.Key, string(kv.Value)); err != nil {
		t.Fatal(err)
	}
}

// following runs a feed until the test ends, and waits until it has read the store.
func following(t testing.TB, s *store.Etcd) *store.IncidentFeed {
	t.Helper()
	f := store.NewIncidentFeed(s, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	supervisortest.Eventually(t, "the feed to have read the store", func() bool { return f.View().Ready })
	return f
}

// TestFeedReadsWhatTheStoreHas: records, notes and responses come and go at random. Each read through the feed returns
// the same as a plain read, whether the feed is up to date or not. In the end the feed itself is up to date.
func TestFeedReadsWhatTheStoreHas(t *testing.T) {
	c := supervisortest.NewEtcd(t, 1).Members[0].Client()
	s := store.NewEtcd(c, store.Options{})
	f := following(t, s)
	rng := rand.New(rand.NewPCG(1, 2))
	forms := func(set *store.IncidentSet) map[string]string {
		out := map[string]string{}
		for _, in := range set.All() {
			out[in.GetId()] = in.String()
		}
		return out
	}
	for i := range 200 {
		id := fmt.Sprintf("k3f9-aaaaaaa%c", 'a'+rune(rng.IntN(6)))
		record, notes, responses := store.IncidentKeys(id)
		part := &lofamov1.Incident{Acknowledgement: &lofamov1.Acknowledgement{By: fmt.Sprint(i)}}
		if key := []string{record, notes, responses}[rng.IntN(3)]; key == record || rng.IntN(4) == 0 {
			in := &lofamov1.Incident{Summary: fmt.Sprint(i), State: lofamov1.IncidentState(1 + rng.IntN(3))}
			if rng.IntN(4) == 0 {
				in = nil
			}
			putIncident(t, c, id, in)
		} else if rng.IntN(4) == 0 {
			if _, err := c.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		} else {
			if key == responses {
				part = &lofamov1.Incident{ResponseCount: uint32(i), Responses: []*lofamov1.IncidentResponse{{Id: fmt.Sprint(i)}}}
			}
			b, err := proto.Marshal(part)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Put(t.Context(), key, string(b)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := s.Incidents(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Read(t.Context())
		if err != nil || !maps.Equal(forms(got), forms(want)) {
			t.Fatalf("change %d: %v, %v: want %v", i, forms(got), err, forms(want))
		}
	}
	want, err := s.Incidents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "the feed to follow", func() bool {
		v := f.View()
		got := map[string]string{}
		for i, in := range v.Incidents {
			got[in.GetId()] = in.String()
			if i > 0 && in.GetRevision() < v.Incidents[i-1].GetRevision() {
				t.Fatalf("incident %s of revision %d follows revision %d", in.GetId(), in.GetRevision(), v.Incidents[i-1].GetRevision())
			}
		}
		return maps.Equal(got, forms(want))
	})
	v := f.View()
	for i, in := range v.Incidents {
		if rest := v.After(in.GetRevision()); len(rest) > len(v.Incidents)-i-1 || f.Of(in.GetId()) != in {
			t.Errorf("%d incidents after revision %d: want at most %d", len(rest), in.GetRevision(), len(v.Incidents)-i-1)
		}
	}
	standing := f.Standing()
	left := slices.DeleteFunc(slices.Clone(v.Incidents), func(in *store.StoredIncident) bool {
		return in.GetState() == lofamov1.IncidentState_CLOSED || slices.Contains(standing.Incidents, in)
	})
	if !standing.Ready || len(left) > 0 || slices.ContainsFunc(standing.Incidents, func(in *store.StoredIncident) bool {
		return in.GetState() == lofamov1.IncidentState_CLOSED || f.Of(in.GetId()) != in
	}) {
		t.Errorf("%+v: want the incidents of %+v that are not CLOSED", standing, v)
	}
	if len(v.Incidents) == 0 || len(v.After(0)) != len(v.Incidents) {
		t.Errorf("%d of %d incidents after revision 0", len(v.After(0)), len(v.Incidents))
	}
}

// BenchmarkReadIncidents reads 1,000 incidents, with and without the forms that a feed has.
func BenchmarkReadIncidents(b *testing.B) {
	c := supervisortest.NewEtcd(b, 1).Members[0].Client()
	s := store.NewEtcd(c, store.Options{})
	for i := range 1000 {
		in := &lofamov1.Incident{Summary: strings.Repeat("x", 200), Verdict: &lofamov1.Verdict{Reason: strings.Repeat("x", 200)}}
		for range 20 {
			in.Consequences = append(in.Consequences, &lofamov1.Consequence{Node: "n10-10-10", Component: "link/X+", Reason: "peer-dead"})
		}
		putIncident(b, c, fmt.Sprint(i), in)
	}
	f := following(b, s)
	for name, read := range map[string]func(context.Context) (*store.IncidentSet, error){"plain": s.Incidents, "feed": f.Read} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if set, err := read(b.Context()); err != nil || len(set.All()) != 1000 {
					b.Fatal(err)
				}
			}
		})
	}
}
