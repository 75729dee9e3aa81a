# The simulator's experiments at full size. Included by the Makefile of the repository.
SIM_RESULTS := bench/results/simulator
SIM_EXPERIMENTS := transfers completion skew sprayed spraying stall overshoot crowd fairness sharing

.PHONY: simulate
simulate: protos ## the simulator's experiments at full size (some 20 minutes), into bench/results/simulator
	$(CARGO) build --release --locked -p rivulet-sim
	mkdir -p $(SIM_RESULTS)
	set -e; for e in $(SIM_EXPERIMENTS); do target/release/rivulet-sim $$e > $(SIM_RESULTS)/$$e.json; done
