package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// diagnoseWithin bounds a full diagnosis of a 4x4x4 cluster.
const diagnoseWithin = 2 * time.Second

// diagnoses measures how long a full diagnosis of a healthy cluster takes, from the call to the report. It must find
// nothing, or the figure has another meaning. The preset is relaxed: at another one two cores have enough to do with
// the heartbeats of 64 nodes.
func diagnoses(ctx context.Context, o options) (err error) {
	runs, preset := 10, config.PresetRelaxed
	o.dims.X, o.dims.Y, o.dims.Z = 4, 4, 4
	if o.short {
		runs, preset, o.dims.X, o.dims.Y, o.dims.Z = 2, config.PresetDefault, 2, 2, 2
	}
	l, dir, err := start(ctx, o, preset)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(dir)) }()
	c, err := l.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var took measure.Latencies
	var links, bad int
	for i := range runs {
		if err := l.Settle(ctx); err != nil {
			return err
		}
		began := time.Now()
		r, err := c.Diagnose(ctx, &lofamov1.DiagnoseRequest{}, func(*lofamov1.DiagnosisProgress) error { return nil })
		if err != nil {
			return fmt.Errorf("diagnosis %d of %d: %w", i+1, runs, err)
		}
		took = append(took, time.Since(began))
		links = len(r.GetLinks())
		bad += len(r.GetFaults()) + len(r.GetSilent())
		for _, x := range r.GetLinks() {
			if x.GetVerdict() != lofamov1.LinkVerdict_LINK_GOOD {
				bad++
			}
		}
		o.progress.f("\rdiagnosis %d/%d ", i+1, runs)
	}
	o.progress.f("\n")
	verdict := "within"
	if took.Max() > diagnoseWithin {
		verdict = "NOT within"
	}
	o.out.f("\n### A full diagnosis, %s, %d links from both ends, preset %s, nothing wrong\n\n", o.dims, links, preset)
	o.out.f("| runs | median | max | at most %s | parts that were not good |\n|---|---|---|---|---|\n", diagnoseWithin)
	o.out.f("| %d | %s | %s | %s | %d |\n", runs, took.Median().Round(time.Millisecond), took.Max().Round(time.Millisecond), verdict, bad)
	return nil
}
