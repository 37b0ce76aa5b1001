"""Seeded bugs in what was built for other data than images: as mutants.py has them."""

from mutant import Mutant

VOLUMES = [
    Mutant(
        "the chunks of a brick have their sides swapped",
        "stager/reader/samples/computed/bricks.py",
        "                    at = tuple(side.chunk for side in one)\n",
        "                    at = tuple(side.chunk for side in reversed(one))\n",
        "tests/test_volumes.py::test_voxels_are_those_of_the_array",
        "assert|AssertionError|ExceptionGroup|SampleError|ValueError",
    ),
    Mutant(
        "a brick is taken from where its chunk begins",
        "stager/reader/samples/computed/chunked.py",
        "        start = max(first - number * chunk, 0)\n",
        "        start = 0\n",
        "tests/test_volumes.py::test_voxels_are_those_of_the_array",
        "assert|AssertionError|ExceptionGroup|SampleError|ValueError",
    ),
    Mutant(
        "a chunk that is not there is zeros, whatever the array's fill value is",
        "stager/layouts/volume/formats/zarr.py",
        "            return np.full(self.chunk, self.fill, self.dtype)\n",
        "            return np.zeros(self.chunk, self.dtype)\n",
        "tests/test_volumes.py::test_voxels_are_those_of_the_array",
        "assert|AssertionError|ExceptionGroup",
    ),
    Mutant(
        "a volume that has gone is empty",
        "stager/sources/chunks.py",
        "            done(EMPTY if is_there else fetched)\n",
        "            done(EMPTY)\n",
        "tests/test_volumes.py::test_chunks_that_are_missing_are_empty_only_while_the_volume_is_there",
    ),
    Mutant(
        "the index of a Zarr shard is not compared with its checksum",
        "stager/sources/chunks.py",
        "    if inner.has_checksum:\n",
        "    if False:\n",
        "tests/test_volumes.py::test_a_damaged_index_of_a_shard_is_told",
        "assert|AssertionError|DID NOT RAISE|SampleError",
    ),
]

PACKED = [
    Mutant(
        "a tar's member begins a header too early",
        "stager/layouts/packed/members.py",
        "found.offset_data, found.offset_data + found.size)\n",
        "found.offset, found.offset + found.size)\n",
        "tests/test_tars.py::test_a_sample_has_the_bytes_label_split_and_attributes_of_its_members",
    ),
    Mutant(
        "a name of a tar's member may lead out of it",
        "stager/layouts/packed/members.py",
        ' or name.startswith("/") or ".." in name.split("/"):\n',
        ":\n",
        "tests/test_tars.py::test_names_that_lead_out_links_and_doubles_are_left_out_and_told",
    ),
    Mutant(
        "a row is counted from the file's beginning, and not from its group's",
        "stager/layouts/packed/parquet.py",
        "                    [group, at, *needs.paths],\n",
        "                    [group, row, *needs.paths],\n",
        "tests/test_parquets.py::test_every_row_gives_its_own_bytes",
        "assert|AssertionError|SampleError",
    ),
    Mutant(
        "a tar is known by its key, whatever its version is",
        "stager/scan/recall.py",
        "        places = self._places.get(info)\n",
        "        places = next((of for known, of in self._places.items() if known.key == info.key), None)\n",
        "tests/test_tars_staged.py::test_tars_on_s3_are_staged_in_few_reads_and_read_globally_shuffled",
        is_slow=True,
    ),
    Mutant(
        "a box that moved is the sample that it was",
        "stager/reader/values.py",
        "    return digest_of(canonical_json([told, at, inputs]).encode())\n",
        "    return digest_of(canonical_json([told, at]).encode())\n",
        "tests/test_boxes.py::test_a_box_that_moved_restages_one_sample",
        is_slow=True,
    ),
]

FUNCTIONS = [
    Mutant(
        "the key of a function knows nothing of what it closes over",
        "stager/reader/code/walk.py",
        "        for variable, content in contents_of(function).items():\n",
        "        for variable, content in ():\n",
        "tests/test_code_key.py::test_a_change_is_told_by_name_and_line",
        is_slow=True,
    ),
    Mutant(
        "the key of a function knows nothing of its helpers",
        "stager/reader/code/walk.py",
        "refers = [[*taken[:2], self._reached(taken, names, module)] for taken",
        "refers = [[*taken[:2]] for taken",
        "tests/test_code_key.py::test_a_change_is_told_by_name_and_line",
        "assert|AssertionError|KeyError",
        is_slow=True,
    ),
    Mutant(
        "a kept result is not compared with its checksums",
        "clients/stager_client/memo/keep.py",
        " or checksum_of_file(path) != checksum:\n",
        ":\n",
        "tests/test_memo.py::test_what_cannot_be_loaded_is_told_and_computed_anew_once",
        "DID NOT WARN",
    ),
    Mutant(
        "what a function made before a crash is not compared with its sum",
        "stager/functions/made.py",
        '        return made if header["sum"] == self._sum(tag, made) else None\n',
        "        return made\n",
        "tests/test_generated_kept.py::test_what_was_made_comes_back_or_is_nothing_whatever_bit_has_flipped",
    ),
]

READS = [
    Mutant(
        "every epoch has the cuts of the first",
        "stager/reader/cuts/cut.py",
        "    of_draw = mix(mix(draws.astype(np.uint64), seed), epoch)\n",
        "    of_draw = mix(mix(draws.astype(np.uint64), seed), 0)\n",
        "tests/test_cuts.py::test_the_numbers_are_this_function_for_good",
    ),
    Mutant(
        "a clip goes on from its beginning with one sample too few",
        "stager/reader/cuts/clips.py",
        "    found.append((row[short], 0, to[short] + first[short], ",
        "    found.append((row[short], 1, to[short] + first[short], ",
        "tests/test_segments.py::test_segments_are_those_of_a_clip_that_was_padded",
        "assert|AssertionError|IndexError|ExceptionGroup",
    ),
    Mutant(
        "the hot set takes the place of what was asked for just now",
        "stager/eviction/evictor.py",
        "expected(dataset, samples)\n        else:\n",
        "expected(dataset, samples)\n        elif is_told:\n",
        "tests/test_hot.py::test_colder_samples_make_room_and_hotter_pinned_or_asked_ones_do_not",
    ),
    Mutant(
        "the hot set works while others need the cores",
        "stager/owner/heat/hot.py",
        "self._busy_cores() > 1 - IDLE_CORES:\n",
        "self._busy_cores() > 1:\n",
        "tests/test_hot.py::test_it_waits_for_idle_cores_and_for_all_who_need_anything",
    ),
    Mutant(
        "a shard in memory that a reader calls corrupt stays",
        "stager/dispatch/memory_shards.py",
        "            if shard is not None and (problem := problem_of(shard.path)):\n",
        "            if shard is not None and (problem := ''):\n",
        "tests/test_departures.py::test_a_shard_in_memory_that_a_reader_calls_corrupt_goes_if_it_is_and_stays_if_not",
    ),
    Mutant(
        "heat is of whatever list of samples",
        "stager/heat/file.py",
        '        if about[b"lineage"] != lineage.encode():\n',
        "        if False:\n",
        "tests/test_heat.py::test_a_file_that_cannot_be_read_is_a_loss_that_is_told",
    ),
    Mutant(
        "a loader takes another version within an epoch",
        "clients/stager_client/batches/loader.py",
        "        if self._under_way is not None or self._resume_at:\n",
        "        if False:\n",
        "tests/test_versions_read.py::test_a_loader_stays_on_its_version_until_it_is_refreshed_between_epochs",
        is_slow=True,
    ),
]

OF_DATA = [*VOLUMES, *PACKED, *FUNCTIONS, *READS]
