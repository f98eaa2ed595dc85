// Package experiment makes the experiments of seed 003 §5.2.1.3 and §5.2.3 with the model of package chaos: system
// drain (Figures 9 to 11), obstacles and their closing (Figures 13 to 17), and the comparison with routers that do
// not deroute. Each study is a function of its parameters, seed included, and returns numbers; package figure in the
// bench module draws them.
package experiment
