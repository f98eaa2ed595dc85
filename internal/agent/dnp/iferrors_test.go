package dnp

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestScenarios(t *testing.T) {
	sourcetest.Run(t, "testdata/*.txt", func(_, root string, _ source.Clock) source.Source {
		return newInterfaceErrors(root, "if0", grid.YMinus)
	})
}

// TestLoopbackInterfaceIsRead reads the real loopback interface.
func TestLoopbackInterfaceIsRead(t *testing.T) {
	src := newInterfaceErrors("/sys", "lo", grid.XPlus)
	r, err := src.Read(t.Context())
	sourcetest.Check(t, src, r)
	if err != nil || r.State != fault.Normal || r.Value != 0 {
		t.Errorf("lo: %+v, %v: want NORMAL and nothing counted yet", r, err)
	}
}
