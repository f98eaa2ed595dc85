package command

import (
	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Painter colours text, or leaves it alone.
type Painter struct{ On bool }

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

// AddColorFlag adds --color. App.Painter reads its value.
func AddColorFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, colorFlag, "auto", "auto (on a terminal, unless $"+envNoColor+" is set), always or never")
	_ = cmd.RegisterFlagCompletionFunc(colorFlag,
		cobra.FixedCompletions([]string{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
}

// Painter reads the flag.
func (a *App) Painter(flag string) (Painter, error) {
	switch flag {
	case "always":
		return Painter{true}, nil
	case "never":
		return Painter{}, nil
	case "auto":
		return Painter{a.Env.Terminal && a.Env.Getenv(envNoColor) == ""}, nil
	}
	return Painter{}, Usagef("--%s %q: want auto, always or never", colorFlag, flag)
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

// State paints text in the colour of a state.
func (p Painter) State(s lofamov1.State, text string) string {
	if !p.On {
		return text
	}
	return stateColor(s) + text + reset
}

// Bold makes text bold.
func (p Painter) Bold(s string) string {
	if !p.On {
		return s
	}
	return "\x1b[1m" + s + reset
}

// Chosen marks the chosen item. Without colours, the mark before it must do.
func (p Painter) Chosen(s string) string {
	if !p.On {
		return s
	}
	return "\x1b[7m" + s + reset
}
