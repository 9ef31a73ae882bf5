// Checks histories of registers with porcupine.
//
//	linearizable FILE SECONDS
//
// FILE has JSON lines: the initial values of each partition, then the operations. The program
// prints one JSON line for each partition: whether its history is linearizable.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	Partition string            `json:"partition"`
	Initial   map[string]string `json:"initial"`
	Client    int               `json:"client"`
	Call      int64             `json:"call"`
	Return    int64             `json:"return"`
	Reads     map[string]string `json:"reads"`
	When      map[string]string `json:"when"`
	Sets      map[string]string `json:"sets"`
	Adds      map[string]int    `json:"adds"`
	// Null where the client does not know whether the conditions held.
	Applied *bool `json:"applied"`
}

type state map[string]string

func holds(registers state, expected map[string]string) bool {
	for name, value := range expected {
		if registers[name] != value {
			return false
		}
	}
	return true
}

func step(before, input, _ any) (bool, any) {
	registers, operation := before.(state), input.(line)
	if !holds(registers, operation.Reads) {
		return false, before
	}
	applied := holds(registers, operation.When)
	if operation.Applied != nil && *operation.Applied != applied {
		return false, before
	}
	if !applied || len(operation.Sets)+len(operation.Adds) == 0 {
		return true, before
	}
	after := maps.Clone(registers)
	maps.Copy(after, operation.Sets)
	for name, number := range operation.Adds {
		old, err := strconv.Atoi(registers[name])
		if err != nil {
			return false, before
		}
		after[name] = strconv.Itoa(old + number)
	}
	return true, after
}

func hash(some any) uint64 {
	registers, sum := some.(state), fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(registers)) {
		fmt.Fprintf(sum, "%s=%s;", name, registers[name])
	}
	return sum.Sum64()
}

func model(initial state) porcupine.Model {
	return porcupine.Model{
		Init:  func() any { return initial },
		Step:  step,
		Equal: func(one, other any) bool { return maps.Equal(one.(state), other.(state)) },
		Hash:  hash,
	}
}

func run(path string, seconds int) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	initial := map[string]state{}
	histories := map[string][]porcupine.Operation{}
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<26)
	for scanner.Scan() {
		var one line
		if err := json.Unmarshal(scanner.Bytes(), &one); err != nil {
			return err
		}
		if one.Initial != nil {
			initial[one.Partition] = one.Initial
			continue
		}
		histories[one.Partition] = append(histories[one.Partition], porcupine.Operation{
			ClientId: one.Client, Input: one, Call: one.Call, Return: one.Return,
		})
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	printed := json.NewEncoder(os.Stdout)
	for _, name := range slices.Sorted(maps.Keys(histories)) {
		left := max(time.Until(deadline), time.Millisecond)
		result := porcupine.CheckOperationsTimeout(model(initial[name]), histories[name], left)
		if err := printed.Encode(map[string]any{
			"partition": name, "result": string(result), "operations": len(histories[name]),
		}); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: linearizable FILE SECONDS")
		os.Exit(2)
	}
	seconds, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = run(os.Args[1], seconds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
