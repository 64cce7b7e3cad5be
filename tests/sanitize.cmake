# Under sanitizers: every kind of thing once or more, on at most two cards, in a selection that is short enough there. What holds
# times against a limit runs alone, as in the plain build.
function(sanitize_test folder name alone)
  list(TRANSFORM ARGN PREPEND test_${name}. OUTPUT_VARIABLE chosen)
  add_test(NAME sanitize-${name} COMMAND ${sanitized} ${Python3_EXECUTABLE} -B -m unittest -v ${chosen}
           WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
  set_tests_properties(sanitize-${name} PROPERTIES LABELS sanitize TIMEOUT 1200 RUN_SERIAL ${alone}
                       ENVIRONMENT "${test_environment}")
endfunction()

# Threads and processes beside each other: under every sanitizer.
set(main_job
  MainJob.test_text_output_is_the_text_of_the_ids_and_nothing_else_on_stdout
  MainJob.test_jsonl_output_is_one_object_a_line
  MainJob.test_a_prompt_may_come_from_stdin_or_a_file
  MainJob.test_a_stage_is_started_by_the_launch_template
  Commands.test_score_prints_the_largest_logits_of_every_position)
set(stage_by_hand
  StageByHand.test_the_hand_help_shows_lines_that_work
  StageByHand.test_a_token_may_be_named_before_it_is_known
  StageByHand.test_a_higher_epoch_forgets_all_and_starts_anew
  StageByHand.test_forks_share_a_prefix_and_then_go_their_own_way
  StageByHand.test_a_stage_answers_while_its_neighbour_is_stopped
  StageByHand.test_rows_that_come_behind_those_of_steps_long_gone_are_not_left_lying
  StageByHand.test_what_cannot_run_is_refused_and_spoils_nothing
  StageByHand.test_a_load_that_cannot_be_met_holds_nothing
  StageByHand.test_end_of_input_ends_a_busy_stage)
set(lifecycle
  Ends.test_sigint_and_sigterm_end_serve_at_once_while_tokens_flow
  Ends.test_sigint_and_sigterm_end_run_at_once
  Ends.test_on_eof_cancel_cancels_what_runs
  Ends.test_shutdown_ends_the_engine_also_from_a_socket
  Ends.test_a_reader_that_is_gone_ends_run_quietly
  ControlSocket
  Tools.test_with_several_engines_a_tool_names_them_and_wants_a_name
  Tools.test_vram_with_arguments_is_the_protocols_command)
set(vram
  VramDuringGeneration.test_200_commands_while_three_sequences_generate_change_no_token
  VramDuringGeneration.test_the_memory_that_the_system_sees_is_what_the_ledger_says
  Foreign)
set(protocol
  Transcripts.test_reserves_move_segments_there_and_back
  Transcripts.test_what_is_refused_changes_nothing_and_loses_nothing
  Transcripts.test_stop_before_during_and_after
  Receipts.test_the_receipts_of_a_command_stand_together
  Generation.test_events_come_in_the_order_of_the_grammar
  Generation.test_more_requests_than_places_wait_their_turn
  Generation.test_commands_sent_before_ready_are_answered_after_it)
set(sampling
  Sampling.test_the_same_tokens_alone_and_beside_others_with_other_settings
  Sampling.test_logprobs_are_of_the_raw_logits_whatever_is_drawn
  Sampling.test_run_takes_the_same_settings_as_flags
  History)
set(pinning
  Pinning.test_cores_are_shared_out_among_the_cards_and_every_thread_has_one
  Pinning.test_pinning_changes_no_token)
set(tools
  MakeModel.test_small_shapes_of_every_architecture_generate_finite_logits
  MakeModel.test_a_seed_gives_the_same_bytes_whatever_the_threads
  MakeModel.test_an_interrupt_leaves_nothing)
set(bench
  Bench.test_one_part_of_a_model_of_ones_own
  Bench.test_a_stop_takes_engines_and_made_models_along)
set(architectures
  Architectures.test_tokens_do_not_depend_on_splits_chunks_residency_or_kernels)
set(exactness
  Exactness.test_sequences_side_by_side_get_the_ids_they_get_alone)
set(kills
  CoordinatorDies.test_a_stopped_stage_does_not_outlive_it_either_once_it_runs_again
  CoordinatorDies.test_the_memory_of_the_dead_is_free_for_the_next_engine
  StageDies.test_a_stage_killed_while_idle_is_there_for_the_next_request
  StageDies.test_a_reserve_stays_in_force_over_a_restart
  StageDies.test_requests_fail_by_name_after_the_last_attempt_and_the_engine_lives
  StageDies.test_sampled_sequences_side_by_side_go_on_identically
  StageDies.test_kills_at_random_moments_change_no_token)
set(leases
  Ends.test_a_lease_outlives_its_stage_even_one_that_could_not_be_met
  Tools.test_killed_with_nine_it_gives_back_within_two_seconds_and_takes_its_command_along
  Many.test_fifty_clients_get_every_answer_right_and_in_order_while_tokens_stay_the_same)
set(links
  RingByHand.test_linked_stages_say_what_the_link_became
  RingByHand.test_pieces_of_every_size_arrive_whole
  RingByHand.test_a_token_may_be_named_before_it_is_known
  RingByHand.test_a_killed_neighbour_leaves_no_ring_with_anybody
  NcclByHand.test_a_token_may_be_named_before_it_is_known
  NcclByHand.test_a_communicator_that_cannot_be_made_leaves_the_socket_and_says_why
  NcclByHand.test_a_killed_neighbour_costs_nothing_but_its_link
  NcclByHand.test_a_sender_that_dies_before_its_rows_are_there_holds_nobody)
set(driver_failures
  DriverFailures.test_what_a_driver_never_takes_back_is_told_and_ends_with_the_process
  DriverFailures.test_a_driver_that_will_not_say_what_is_free_moves_nothing
  DriverFailures.test_a_call_refused_once_costs_a_receipt_and_no_token)

# What one thread reads, plans, refuses and computes: the address sanitizer's.
if(EBBTIDE_SANITIZE MATCHES address)
  list(APPEND main_job
    Commands.test_every_command_has_a_help_of_its_own
    Commands.test_a_wrong_use_is_one_line_and_exit_2
    Commands.test_a_split_that_does_not_cover_the_model_is_refused_by_name
    Commands.test_more_cards_than_layers_are_refused
    Commands.test_a_card_too_small_for_its_layers_is_refused_with_numbers)
  list(APPEND protocol
    Receipts.test_freed_is_what_the_card_accounts_for_always
    Generation.test_text_comes_in_whole_characters_and_loses_no_byte
    Generation.test_a_stop_in_a_long_prefill_takes_effect_within_a_step
    Generation.test_roles_go_through_the_chat_template)
  list(APPEND sampling
    Sampling.test_greedy_tokens_under_penalties_are_those_of_the_documented_arithmetic
    Sampling.test_a_bias_forbids_a_token_and_another_forces_one
    Sampling.test_a_prefix_that_is_reused_brings_its_history
    Sampling.test_a_stop_text_is_met_across_the_borders_of_tokens
    Sampling.test_wrong_settings_are_refused_by_name)
  # The thread sanitizer has a thread of its own, which stays where it was started.
  list(APPEND pinning Pinning.test_a_stage_lets_go_when_it_gives_everything_back)
  list(APPEND tools
    MakeModel.test_every_mix_of_types_opens_and_generates
    MakeModel.test_what_it_cannot_do_is_refused_by_name_and_leaves_nothing
    MakeModel.test_a_full_disk_or_a_limit_leaves_nothing)
  list(APPEND bench
    Bench.test_what_cannot_be_is_told_in_one_line
    Bench.test_a_model_that_no_engine_opens_is_a_failure)
  list(APPEND architectures
    Architectures.test_the_float_path_is_within_two_thousandths_on_all_logits
    Architectures.test_the_integer_path_is_within_its_tolerances)
  list(APPEND exactness
    Exactness.test_a_prefix_that_is_reused_leads_to_the_ids_of_one_that_is_not)
  list(APPEND kills
    StageDies.test_a_stage_killed_in_a_prefill_costs_no_request
    StageStops.test_a_stopped_stage_leaves_the_engine_answering)
  list(APPEND links
    RingByHand.test_cards_that_cannot_share_use_the_socket_and_say_why
    Engines.test_tokens_go_on_identically_after_the_middle_stage_is_killed)
  list(APPEND driver_failures
    DriverFailures.test_a_refused_load_holds_nothing_and_the_next_one_works
    DriverFailures.test_a_driver_that_goes_on_refusing_costs_receipts_and_no_token)
  sanitize_test(e2e planning OFF
    Configuration
    Operations
    Plans.test_golden_plans_for_one_to_eight_cards_without_any_hardware
    Plans.test_every_layer_once_for_uneven_cards_and_tiny_reserves
    Plans.test_an_engine_splits_uneven_cards_as_planned
    Plans.test_a_split_that_does_not_fit_names_the_card_and_one_that_does
    Plans.test_an_engine_whose_cards_are_too_small_is_refused_with_the_same_words
    Plans.test_why_shows_the_candidates_and_low_the_number_to_set)
  sanitize_test(e2e bad_files OFF BadFiles)
  sanitize_test(e2e heat OFF HeatFiles)
  sanitize_test(e2e budget OFF Credits Budget.test_what_a_vram_command_holds_is_refused_and_had_again_afterwards)
  sanitize_test(e2e yield ON Yielding.test_while_tokens_flow_it_gives_way_within_a_second_and_no_token_changes)
  sanitize_test(e2e turns ON Turns)
  sanitize_test(e2e top OFF
    Top.test_heat_is_a_bar_of_layers
    Top.test_an_engine_that_answers_nonsense_is_shown_as_far_as_it_makes_sense)
  sanitize_test(e2e comfy_handoff ON
    ComfyHandoff.test_of_cards_of_one_name_the_one_is_found_that_comfyuis_process_means
    ComfyHandoff.test_it_warns_where_less_is_free_than_a_program_needs_to_attach
    ComfyHandoff.test_an_engine_without_leases_gets_its_reserve_back_by_hand_with_a_warning)
  sanitize_test(e2e goldens OFF
    Goldens.test_the_plain_reference_gives_the_same_logits_as_the_chosen_kernels)
endif()

foreach(name main_job stage_by_hand links protocol sampling architectures exactness pinning tools)
  sanitize_test(e2e ${name} OFF ${${name}})
endforeach()
foreach(name lifecycle vram bench leases)
  sanitize_test(e2e ${name} ON ${${name}})
endforeach()
sanitize_test(chaos kills ON ${kills})
sanitize_test(chaos driver_failures OFF ${driver_failures})
