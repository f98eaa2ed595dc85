package deaths

import (
	"context"
	"io"
	"testing"
)

// TestCampaignThatCannotStartIsRecorded: its end names the failure.
func TestCampaignThatCannotStartIsRecorded(t *testing.T) {
	var lines []Line
	o := Options{Dir: t.TempDir(), Bin: t.TempDir(), Seed: 1, Rounds: 1, Out: io.Discard, Record: func(l Line) error {
		lines = append(lines, l)
		return nil
	}}
	if _, _, err := Run(t.Context(), o); err == nil {
		t.Fatal("without programs: want an error")
	}
	if n := len(lines); n != 2 || lines[0].Begin == nil || lines[1].End == nil || lines[1].End.Failure == "" ||
		lines[1].End.Campaign != lines[0].Begin.Campaign {
		t.Errorf("%+v: want a begin, and an end with its failure", lines)
	}
}

func TestInterruptedCampaignIsError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := interrupted(ctx, nil); err != nil {
		t.Errorf("not interrupted: %v", err)
	}
	cancel()
	if err := interrupted(ctx, nil); err == nil {
		t.Error("interrupted: want an error")
	}
	if err := interrupted(ctx, io.EOF); err != io.EOF { //nolint:errorlint // the same
		t.Errorf("%v: want the error of the campaign", err)
	}
}
