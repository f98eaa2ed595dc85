package ctl

import (
	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// painter colours text, or leaves it alone.
type painter struct{ on bool }

const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31;1m"
	grey   = "\x1b[90m"
	reset  = "\x1b[0m"
)

const (
	colorFlag = "color"

	// envNoColor is the convention of no-color.org.
	envNoColor = "NO_COLOR"
)

func addColorFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, colorFlag, "auto", "auto (on a terminal, unless $"+envNoColor+" is set), always or never")
	_ = cmd.RegisterFlagCompletionFunc(colorFlag, cobra.FixedCompletions([]string{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
}

// painter reads the flag.
func (a *app) painter(flag string) (painter, error) {
	switch flag {
	case "always":
		return painter{true}, nil
	case "never":
		return painter{}, nil
	case "auto":
		return painter{a.env.Terminal && a.env.Getenv(envNoColor) == ""}, nil
	}
	return painter{}, usagef("--%s %q: want auto, always or never", colorFlag, flag)
}

func stateColor(s lofamov1.State) string {
	switch s {
	case lofamov1.State_NORMAL:
		return green
	case lofamov1.State_SICK:
		return yellow
	case lofamov1.State_FAILED:
		return red
	default:
		return grey
	}
}

// state paints text in the colour of a state.
func (p painter) state(s lofamov1.State, text string) string {
	if !p.on {
		return text
	}
	return stateColor(s) + text + reset
}
