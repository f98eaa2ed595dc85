package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// BenchmarkScrape measures the other goroutines' time that a scrape of a leader's map of 100,000 nodes takes. The
// scrape blocks no other work.
func BenchmarkScrape(b *testing.B) {
	dims := grid.Dims{X: 100, Y: 50, Z: 20}
	for _, bc := range []struct {
		name string
		make func(*view.Builder)
	}{
		{"healthy", func(*view.Builder) {}},
		{"one in a hundred dead", func(m *view.Builder) {
			for row := range dims.Y * dims.Z {
				y, z := row%dims.Y, row/dims.Y
				dies(m, dims, dims.Rank(grid.Coord{X: (37*y + 17*z) % dims.X, Y: y, Z: z}))
			}
		}},
		{"nothing heard", func(m *view.Builder) {
			for rank := range dims.Nodes() {
				set(m, dims, rank, fault.Unknown, nil)
			}
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			builder := torus(b, dims)
			bc.make(builder)
			m := builder.Map(1)
			reg := prometheus.NewRegistry()
			reg.MustRegister(NewCollector(func() (view.Map, bool) { return m, true }, func() []*lofamov1.Incident { return nil }))
			for b.Loop() {
				if _, err := reg.Gather(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
