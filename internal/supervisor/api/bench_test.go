package api

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// large is 100,000 nodes, 2,500 in each rack. A hundredth of them is FAILED.
func large(b *testing.B) (*harness, *leads) {
	b.Helper()
	l := newLeads(grid.Dims{X: 50, Y: 50, Z: 40})
	sick := make(map[string]fault.State)
	for i, id := range l.names.All() {
		if i%100 == 0 {
			sick[string(id)] = fault.Failed
		}
	}
	l.set(sick)
	return serveNamed(b, l, l.names, 1024), l
}

// BenchmarkReads measures a dashboard's reads of 100,000 nodes.
func BenchmarkReads(b *testing.B) {
	h, _ := large(b)
	for name, ask := range map[string]func() error{
		"not normal": func() error {
			_, err := h.client.ListNodes(b.Context(), &lofamov1.ListNodesRequest{NotNormal: true})
			return err
		},
		"a page of what is not normal": func() error {
			_, err := h.client.ListNodes(b.Context(), &lofamov1.ListNodesRequest{NotNormal: true, Brief: true, Limit: 500})
			return err
		},
		"summary": func() error {
			_, err := h.client.GetSummary(b.Context(), &lofamov1.GetSummaryRequest{})
			return err
		},
		"summary by label and dimension": func() error {
			_, err := h.client.GetSummary(b.Context(), &lofamov1.GetSummaryRequest{By: []string{"label/rack", "dimension/X", "dimension/Y"}})
			return err
		},
		"first page": func() error {
			_, err := h.client.ListNodes(b.Context(), &lofamov1.ListNodesRequest{Brief: true, Limit: 1000})
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			if err := ask(); err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				if err := ask(); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkFanOut measures a burst of 300 changes in 6 revisions, until each of 1,000 clients has received the last
// one. The clients run in this process too and share its processors.
func BenchmarkFanOut(b *testing.B) {
	l := newLeads(grid.Dims{X: 4, Y: 4, Z: 4})
	h := serveNamed(b, l, l.names, 1024)
	const clients = 1000
	at := make(chan time.Time, clients)
	begun := make(chan struct{}, clients)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	defer wg.Wait()
	defer cancel()
	for range clients {
		s, err := h.client.Watch(ctx, &lofamov1.WatchRequest{})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			for first := true; ; first = false {
				resp, err := s.Recv()
				if err != nil {
					return
				}
				if first {
					begun <- struct{}{}
				}
				if n := len(resp.GetEvents()); n > 0 && resp.GetEvents()[n-1].GetReason() == "last" {
					at <- time.Now()
				}
			}
		})
	}
	for range clients {
		<-begun
	}
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		for r := range 6 {
			var events []*lofamov1.Event
			for i := range 50 {
				events = append(events, &lofamov1.Event{Node: "n1-1-1", Coord: "1,1,1", Component: "link/X+", From: lofamov1.State_NORMAL,
					To: lofamov1.State_FAILED, Reason: fmt.Sprint(i), Observer: "n1-1-0/dnp"})
			}
			if r == 5 {
				events[49].Reason = "last"
			}
			if _, err := h.writer.Commit(b.Context(), store.Batch{Events: events}); err != nil {
				b.Fatal(err)
			}
		}
		for range clients {
			took = append(took, (<-at).Sub(start))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
}
