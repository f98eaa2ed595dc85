package dnp

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/failpoint"
)

type dnpInjection struct {
	Dir    string         `json:"dir"`
	Faults *faultsRequest `json:"mangle"`
	Heal   bool           `json:"heal"` // all links
}

// faultsRequest states faults of a link. Those that are nil stay as they are.
type faultsRequest struct {
	BlockIn    *bool    `json:"block_in"`
	BlockOut   *bool    `json:"block_out"`
	DropIn     *float64 `json:"drop_in"`
	DropOut    *float64 `json:"drop_out"`
	CorruptIn  *float64 `json:"corrupt_in"`
	CorruptOut *float64 `json:"corrupt_out"`
	DupOut     *float64 `json:"dup_out"`
	DelayOut   *string  `json:"delay_out"` // a duration such as "5ms"; empty: none
}

// change returns the faults m as the request changes them.
func (r faultsRequest) change(m udplink.LinkFaults) (udplink.LinkFaults, error) {
	set(&m.BlockIn, r.BlockIn)
	set(&m.BlockOut, r.BlockOut)
	set(&m.DropIn, r.DropIn)
	set(&m.DropOut, r.DropOut)
	set(&m.CorruptIn, r.CorruptIn)
	set(&m.CorruptOut, r.CorruptOut)
	set(&m.DupOut, r.DupOut)
	if r.DelayOut != nil {
		m.DelayOut = 0
		if *r.DelayOut != "" {
			var err error
			if m.DelayOut, err = time.ParseDuration(*r.DelayOut); err != nil {
				return m, fmt.Errorf("mangle: delay_out: given %q: want a duration such as \"5ms\"", *r.DelayOut)
			}
		}
	}
	return m, m.Validate()
}

// set sets a field to a value that is stated.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// injectHandler serves the DNP half's fault injection on its own end of a link: POST /inject
// {"dir":"X+","mangle":{…}} or {"heal":true}.
func (d *dnpHalf) injectHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/inject", half.Post(func(in dnpInjection) (any, error) {
		if in.Heal {
			d.Log.Warn("fault injection", "heal", true)
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, l := range d.links {
				if l != nil {
					l.SetFaults(udplink.LinkFaults{})
				}
			}
			return nil, nil
		}
		dir, err := grid.ParseDirection(in.Dir)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		l := d.links[dir.Index()]
		_, linked := d.core.LinkTo(dir)
		dims := d.core.Torus()
		if l == nil || !linked {
			return nil, fmt.Errorf("direction %s: the %s torus has no such link", dir, dims)
		}
		if in.Faults == nil {
			return nil, errors.New("mangle: missing")
		}
		m, err := in.Faults.change(l.Faults())
		if err != nil {
			return nil, err
		}
		d.Log.Warn("fault injection", "link", dir.String(), "faults", fmt.Sprintf("%+v", m))
		l.SetFaults(m)
		return nil, nil
	}))
	failpoint.Mount(mux)
	d.window.Mount(mux)
	return mux
}
